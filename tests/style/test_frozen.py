"""What decides is plain data that nobody changes: a plan can be shared, saved and replayed."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import msgspec
import pytest

from bidplane import core, exchange, ledger

# Built up within one function or object, and handed on only when complete.
BUILT_UP = {"_Entry", "_Node", "AllocatedDevices", "WorkloadPlan"}


def structs(package: ModuleType) -> Iterator[type[msgspec.Struct]]:
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for _, value in inspect.getmembers(import_module(info.name), inspect.isclass):
            if issubclass(value, msgspec.Struct) and value.__module__ == info.name:
                yield value


@pytest.mark.parametrize("package", [core, ledger, exchange])
def test_structs_are_frozen(package: ModuleType) -> None:
    loose = {c.__name__ for c in structs(package) if not c.__struct_config__.frozen}
    assert loose <= BUILT_UP, f"declare them with frozen=True: {sorted(loose - BUILT_UP)}"
