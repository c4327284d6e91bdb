"""
Fixtures for pytest. Loaded in every run of every project that installs Bidplane, so nothing is
imported here before a test asks for it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bidplane.testing.cluster import Cluster
    from bidplane.testing.rig import Binaries


@pytest.fixture(scope="session")
def kube_binaries() -> Binaries:
    """The five real Kubernetes binaries; the test is skipped, with the reason, without them."""
    from bidplane.testing import rig

    try:
        return rig.find()
    except rig.RigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cluster(kube_binaries: Binaries) -> Iterator[Cluster]:
    """A real control plane with controllers; with a scheduler if BIDPLANE_TEST_SCHEDULER=1."""
    from bidplane.testing.cluster import Cluster

    scheduler = os.environ.get("BIDPLANE_TEST_SCHEDULER") == "1"
    with Cluster(kube_binaries, scheduler=scheduler) as running:
        yield running


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """A kubectl that answers: the rig's, else the one on PATH."""
    from bidplane.testing import rig

    try:
        return rig.find(["kubectl"])["kubectl"]
    except rig.RigError as error:
        on_path = shutil.which("kubectl")
        if on_path and rig.version_of(Path(on_path)):
            return Path(on_path)
        pytest.skip(str(error))
