"""`bidplane plane …`: Kubernetes control planes, made in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from bidplane.cli.agent import Certificate, write_kubeconfig
from bidplane.cli.common import Data, ask, console, http, print_table, refusal
from bidplane.errors import UserError

app = App(name="plane", help="Planes: a Kubernetes each, for whatever needs one.")

_BASE = "/bidplane/v1/planes"

Output = Annotated[Path | None, Parameter(name=["--output", "-o"], help="Where to write it.")]
Hours = Annotated[float, Parameter(help="How long the credential lasts.")]


@app.command
def create(name: str, /, *, output: Output = None, hours: Hours = 24, data: Data = None) -> None:
    """
    Make a plane that belongs to no agent, and write a kubeconfig for it.

    Example:
        bidplane plane create scratch && kubectl --kubeconfig scratch.kubeconfig get ns
    """
    ask(data, "POST", f"{_BASE}/{name}", dict[str, Any])
    path = write_kubeconfig(name, output, data, hours)
    console.print(f"plane {name} is ready; its kubeconfig is {path}, good for {hours:g} hours")


@app.command(name="list")
def list_(*, data: Data = None) -> None:
    """All planes: whose they are, and whether they sleep."""
    found = ask(data, "GET", _BASE, list[dict[str, Any]])
    rows = [
        [
            plane["name"],
            "host" if plane["name"] == "host" else "agent" if plane["agent"] else "-",
            "awake" if plane["awake"] else "asleep",
            f"{plane['bytes'] / 1024:.0f} KiB",
        ]
        for plane in found
    ]
    print_table(["NAME", "OF", "STATE", "DISK"], rows, right="DISK")


@app.command
def kubeconfig(
    name: str,
    /,
    *,
    output: Output = None,
    hours: Hours = 24,
    certificate: Certificate = False,
    data: Data = None,
) -> None:
    """
    Write a fresh kubeconfig for a plane.

    Examples:
        bidplane plane kubeconfig scratch --hours 2
        bidplane plane kubeconfig scratch --certificate
    """
    path = write_kubeconfig(name, output, data, hours, certificate=certificate)
    console.print(f"wrote {path}, good for {hours:g} hours")


@app.command
def sleep(name: str, /, *, data: Data = None) -> None:
    """Close a plane's file and give its memory back; the next request wakes it."""
    ask(data, "POST", f"{_BASE}/{name}/sleep", dict[str, Any])
    console.print(f"plane {name} sleeps; the next request wakes it")


@app.command
def wake(name: str, /, *, data: Data = None) -> None:
    """Open a plane that sleeps, before anybody asks for it."""
    ask(data, "POST", f"{_BASE}/{name}/wake", dict[str, Any])
    console.print(f"plane {name} is awake")


@app.command
def snapshot(name: str, /, *, output: Output = None, data: Data = None) -> None:
    """Write a plane, as it is now, to one file."""
    path = output or Path(f"{name}.plane")
    with http(data) as client:
        response = client.get(f"{_BASE}/{name}/snapshot")
        if response.status_code >= 400:
            raise refusal(response)
    try:
        path.touch(mode=0o600)  # a plane holds secrets
        path.write_bytes(response.content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose with --output") from error
    console.print(f"wrote {path} ({len(response.content) / 1024:.0f} KiB)")


@app.command
def restore(
    name: str,
    file: Path,
    /,
    *,
    same: Annotated[
        bool, Parameter(help="Under its old uid: credentials of the plane that was open it.")
    ] = False,
    data: Data = None,
) -> None:
    """Bring a snapshot back as a plane; the name must be free."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    params = {"same": "true"} if same else {}
    ask(data, "PUT", f"{_BASE}/{name}", dict[str, Any], content=content, params=params)
    console.print(f"plane {name} is as {file} was\nopen it with: bidplane plane kubeconfig {name}")


@app.command
def fork(name: str, new: str, /, *, data: Data = None) -> None:
    """
    Copy a plane as it is now, to see what would happen.

    The copy belongs to no agent: its pods bid for nothing.
    """
    ask(data, "POST", f"{_BASE}/{name}/fork", dict[str, Any], params={"to": new})
    console.print(f"plane {new} is a copy of {name}\nopen it with: bidplane plane kubeconfig {new}")


@app.command
def delete(name: str, /, *, data: Data = None) -> None:
    """Remove a plane and everything in it, at once."""
    ask(data, "DELETE", f"{_BASE}/{name}", dict[str, Any])
    console.print(f"plane {name} is gone")
