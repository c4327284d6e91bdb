"""
What to write instead of a selector that asks for an attribute the device does not have.

Upstream such an expression fails when it is first asked, and the pod waits for ever. Blogs teach
some of these names, though nobody publishes them; what their authors meant is known here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_ACCESS = re.compile(r"""device\.attributes\[\s*(["'])([^"']+)\1\s*\]\.(\w+)""")

# (domain, name) as it is taught → as it is published. The domain alone is enough to know some.
MEANT = {
    ("pcie", "linkwidth"): ("bidplane.dev", "pcieLinkWidth"),
    ("pcie", "width"): ("bidplane.dev", "pcieLinkWidth"),
    ("pcie", "linkgeneration"): ("bidplane.dev", "pcieLinkGeneration"),
    ("pcie", "linkgen"): ("bidplane.dev", "pcieLinkGeneration"),
    ("pcie", "generation"): ("bidplane.dev", "pcieLinkGeneration"),
    ("pcie", "root"): ("resource.kubernetes.io", "pcieRoot"),
    ("nvlink", "domain"): ("bidplane.dev", "linkDomain"),
    ("nvlink", "clique"): ("bidplane.dev", "linkDomain"),
    ("topology", "numa"): ("resource.kubernetes.io", "numaNode"),
    ("topology", "numanode"): ("resource.kubernetes.io", "numaNode"),
}


def rewritten(source: str) -> str | None:
    """A taught expression as it must be written here; None if it is not one."""
    guards: list[str] = []

    def replace(found: re.Match[str]) -> str:
        meant = MEANT.get((found[2].lower(), found[3].lower()))
        if meant is None:
            return found[0]
        domain, name = meant
        guard = f'"{name}" in device.attributes["{domain}"]'
        if guard not in guards and guard not in source:
            guards.append(guard)
        return f'device.attributes["{domain}"].{name}'

    changed = _ACCESS.sub(replace, source)
    if changed == source:
        return None
    if guards and "||" in changed:
        changed = f"({changed})"
    return " && ".join([*guards, changed])


def hint(source: str, driver: str, attributes: Iterable[str]) -> str:
    """The end of an error message: what a driver's device has, and the line to write."""
    taught = rewritten(source)
    if taught is not None:
        return f"; write: {taught}"
    there = sorted(name if "/" in name else f"{driver}/{name}" for name in attributes)
    for _, domain, name in _ACCESS.findall(source):
        if f"{domain}/{name}" in there:
            continue
        near = difflib.get_close_matches(f"{domain}/{name}", there, n=1, cutoff=0.7) or [
            full for full in there if full.endswith(f"/{name}")
        ]
        guarded = f'"{name}" in device.attributes["{domain}"] && …'
        known = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(there) or 'none'}"
        return f"; the device has no attribute {domain}/{name}{known} To skip it: {guarded}"
    return ""
