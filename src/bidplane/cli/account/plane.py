"""`bidplane plane …`: Kubernetes control planes, created in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from bidplane.api.http.planes import PlaneSummary, QuarantineRelease
from bidplane.cli.account.agent import Certificate, write_kubeconfig
from bidplane.cli.common import (
    Data,
    Json,
    ask,
    console,
    http,
    print_json,
    print_table,
)
from bidplane.errors import UserError

app = App(name="plane", help="Planes: Kubernetes control planes, created in milliseconds.")

_BASE = "/bidplane/v1/planes"
Nothing: TypeAlias = dict[str, str]  # the answer {}

Output = Annotated[Path | None, Parameter(name=["--output", "-o"], help="Where to write it.")]
Hours = Annotated[float, Parameter(help="How long the credential lasts.")]


@app.command
def create(
    name: str,
    /,
    *,
    output: Output = None,
    hours: Hours = 24,
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Create a plane that belongs to no agent, and write a kubeconfig for it.

    For example:
        bidplane plane create scratch && kubectl --kubeconfig scratch.kubeconfig get ns
    """
    ask(data, "POST", f"{_BASE}/{name}", Nothing)
    written = write_kubeconfig(name, output, data, hours)
    if json:
        print_json({"name": name, **written.as_json})
        return
    console.print(f"plane {name} is ready; its kubeconfig is {written}")


@app.command(name="list")
def list_(*, json: Json = False, data: Data = None) -> None:
    """
    List all planes: their owners, and which are asleep.

    For example:
        bidplane plane list
        bidplane plane list --json | jq -r '.[] | select(.awake) | .name'
    """
    planes = ask(data, "GET", _BASE, list[PlaneSummary])
    if json:
        print_json(planes)
        return
    rows = [
        [
            plane.name,
            "host" if plane.name == "host" else "agent" if plane.agent else "-",
            "awake" if plane.awake else "asleep",
            f"{plane.bytes / 1024:.0f} KiB",
        ]
        for plane in planes
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
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Write a new kubeconfig for a plane.

    For example:
        bidplane plane kubeconfig scratch --hours 2
        bidplane plane kubeconfig scratch --certificate
    """
    written = write_kubeconfig(name, output, data, hours, certificate=certificate)
    if json:
        print_json({"name": name, **written.as_json})
        return
    console.print(f"wrote {written}")


Limit = int | None


@app.command
def limit(
    name: str,
    /,
    *,
    pods: Annotated[Limit, Parameter(help="The most pods; 1000 unless set.")] = None,
    objects: Annotated[Limit, Parameter(help="The most objects; 50,000 unless set.")] = None,
    bytes: Annotated[
        Limit, Parameter(help="The most bytes of objects; 256 MiB unless set.")
    ] = None,
    disk: Annotated[Limit, Parameter(help="The most bytes on disk; 1 GiB unless set.")] = None,
    definitions: Annotated[
        Limit, Parameter(help="The most CustomResourceDefinitions; 200 unless set.")
    ] = None,
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Set how much a plane may hold. What it has already stays.

    Limits in spec.limits of the plane's Agent come first.

    For example:
        bidplane plane limit trainer --pods 5000 --objects 100000
    """
    asked = {
        "pods": pods,
        "objects": objects,
        "bytes": bytes,
        "disk": disk,
        "definitions": definitions,
    }
    limits = {key: value for key, value in asked.items() if value is not None}
    if not limits:
        raise UserError("name a limit, for example --pods 5000")
    for key, value in limits.items():
        if value < 1:
            raise UserError(f"--{key} {value}: the limit is at least 1")
    params = {key: str(value) for key, value in limits.items()}
    ask(data, "POST", f"{_BASE}/{name}/limit", Nothing, params=params)
    if json:
        print_json({"name": name, **limits})
        return
    text = ", ".join(f"{value} {key}" for key, value in limits.items())
    console.print(f"plane {name} may have {text}")


@app.command
def release(name: str, /, *, json: Json = False, data: Data = None) -> None:
    """
    End a plane's quarantine: serve again what blocked the server for too long, twice.

    For example:
        bidplane plane release trainer
    """
    answer = ask(data, "POST", f"{_BASE}/{name}/release", QuarantineRelease)
    if json:
        print_json({"name": name, "released": answer.released})
        return
    console.print(f"plane {name}: {answer.released} quarantined kinds of work are released")


@app.command
def sleep(name: str, /, *, json: Json = False, data: Data = None) -> None:
    """
    Close a plane's file and give its memory back; the next request wakes it.

    For example:
        bidplane plane sleep lab
    """
    ask(data, "POST", f"{_BASE}/{name}/sleep", Nothing)
    if json:
        print_json({"name": name, "done": "sleep"})
        return
    console.print(f"plane {name} sleeps; the next request wakes it")


@app.command
def wake(name: str, /, *, json: Json = False, data: Data = None) -> None:
    """
    Open a sleeping plane before its first request.

    For example:
        bidplane plane wake lab
    """
    ask(data, "POST", f"{_BASE}/{name}/wake", Nothing)
    if json:
        print_json({"name": name, "done": "wake"})
        return
    console.print(f"plane {name} is awake")


@app.command
def snapshot(name: str, /, *, output: Output = None, json: Json = False, data: Data = None) -> None:
    """
    Write the present state of a plane to one file.

    For example:
        bidplane plane snapshot lab --output lab.snapshot
    """
    path = output or Path(f"{name}.plane")
    with http(data) as client:
        content = client.call("GET", f"{_BASE}/{name}/snapshot").accepted().body
    try:
        path.touch(mode=0o600)  # a plane holds secrets
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose with --output") from error
    if json:
        print_json({"name": name, "path": str(path), "bytes": len(content)})
        return
    console.print(f"wrote {path} ({len(content) / 1024:.0f} KiB)")


@app.command
def restore(
    name: str,
    file: Path,
    /,
    *,
    same: Annotated[
        bool, Parameter(help="Keep the old uid, so that the old plane's credentials work.")
    ] = False,
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Restore a snapshot as a plane; the name must be free.

    For example:
        bidplane plane restore lab lab.snapshot
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    params = {"same": "true"} if same else {}
    ask(data, "PUT", f"{_BASE}/{name}", Nothing, body=content, params=params)
    if json:
        print_json({"name": name, "done": "restore"})
        return
    console.print(
        f"plane {name} is restored from {file}\nopen it with: bidplane plane kubeconfig {name}"
    )


@app.command
def fork(name: str, new: str, /, *, json: Json = False, data: Data = None) -> None:
    """
    Copy the present state of a plane into a new one, for experiments.

    The copy belongs to no agent: its pods bid for nothing.

    For example:
        bidplane plane fork lab copy
    """
    ask(data, "POST", f"{_BASE}/{name}/fork", Nothing, params={"to": new})
    if json:
        print_json({"name": new, "of": name, "done": "fork"})
        return
    console.print(f"plane {new} is a copy of {name}\nopen it with: bidplane plane kubeconfig {new}")


@app.command
def delete(name: str, /, *, json: Json = False, data: Data = None) -> None:
    """
    Delete a plane and everything in it, at once.

    For example:
        bidplane plane delete lab
    """
    ask(data, "DELETE", f"{_BASE}/{name}", Nothing)
    if json:
        print_json({"name": name, "done": "delete"})
        return
    console.print(f"plane {name} is gone")
