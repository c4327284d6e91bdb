"""
Hints for selectors that ask for an attribute the device does not have.

Upstream such an expression fails when it is first evaluated, and the pod waits for ever. Blogs
teach some of these names though no driver publishes them; this table knows the published names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_ACCESS = re.compile(r"""device\.attributes\[\s*(["'])([^"']+)\1\s*\]\.(\w+)""")

# (domain, name) as blogs have it → as drivers publish it.
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


def rewrite_selector(source: str) -> str | None:
    """Return a selector with taught names replaced by the published ones; None if it has none."""
    guards: list[str] = []

    def replace(access: re.Match[str]) -> str:
        published = MEANT.get((access[2].lower(), access[3].lower()))
        if published is None:
            return access[0]
        domain, name = published
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
    """Return the end of an error message: the attributes that the device has, and what to write."""
    suggested_source = rewrite_selector(source)
    if suggested_source is not None:
        return f"; write: {suggested_source}"
    attribute_names = sorted(name if "/" in name else f"{driver}/{name}" for name in attributes)
    for _, domain, name in _ACCESS.findall(source):
        if f"{domain}/{name}" in attribute_names:
            continue
        similar = difflib.get_close_matches(
            f"{domain}/{name}", attribute_names, n=1, cutoff=0.7
        ) or [full for full in attribute_names if full.endswith(f"/{name}")]
        guard = f'"{name}" in device.attributes["{domain}"] && …'
        suggestion = (
            f"; did you mean {similar[0]}?"
            if similar
            else f"; it has {', '.join(attribute_names) or 'none'}"
        )
        return f"; the device has no attribute {domain}/{name}{suggestion} To skip it: {guard}"
    return ""
