"""
The diagnosis of a cluster that may become a host: facts, and findings from them. Pure.

`model` has the facts and the findings, `checks` the ordered list of checks. Each check turns facts
into findings: what was found, what it costs, and the command that mends it. `kube.survey` reads the
facts.
"""

from __future__ import annotations

from bidplane.core.diagnosis.checks import diagnose
from bidplane.core.diagnosis.model import ClusterFacts, Finding, Level

__all__ = ["ClusterFacts", "Finding", "Level", "diagnose"]
