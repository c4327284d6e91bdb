"""`bidplane user …`: people with names and roles, each with a credential of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from bidplane.cli.account.kubeconfigs import OWNERS_MOST_HOURS, lifetime, save
from bidplane.cli.common import Data, Json, console, http, print_json
from bidplane.gate.actors import require_person_name

app = App(name="user", help="People: names, roles, credentials.")


@app.command
def create(
    name: str,
    *,
    role: Literal["owner", "operator", "approver", "finance"],
    hours: float = 24,
    output: Annotated[
        Path | None, Parameter(help="The kubeconfig to write; else NAME.kubeconfig.")
    ] = None,
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Write a kubeconfig of the host for a person. Policies see the name and the role.

    Every role may read the fleet and propose changes. An operator may change nodes, pods, leases,
    pools and agents within Policy; finance, pools and agents; an approver approves; an owner may
    do everything else, too. The credential ends by itself; create it again for another.

    For example:
        bidplane user create ann --role operator
        kubectl --kubeconfig ann.kubeconfig get proposals

    Args:
        name: The person's name, as Policies and the audit show it.
        role: The rights.
        hours: How long the credential lasts.
    """
    require_person_name(name)
    params = {**lifetime(hours, most=OWNERS_MOST_HOURS), "role": role}
    with http(data) as client:
        answer = client.call("POST", f"/bidplane/v1/users/{name}", params=params)
    written = save(output or Path(f"{name}.kubeconfig"), answer.accepted())
    if json:
        print_json({"name": name, "role": role, **written.as_json})
        return
    console.print(f"{role} {name}: wrote {written}", soft_wrap=True)
