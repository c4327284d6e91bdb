"""Constraints between the devices of one claim: equal in an attribute, or all different in it."""

from __future__ import annotations

from typing import Any

from bidplane.core.devices.claims.model import Constraint, Device, DeviceRequest, value_key


class ConstraintState:
    """A constraint with the values of the devices assigned so far."""

    __slots__ = ("_constraint", "_values")

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._values: list[tuple[str, Any] | None] = []

    def add(self, request: DeviceRequest, device: Device) -> bool:
        """Add the device and return True, unless that would break the constraint."""
        constraint = self._constraint
        if not constraint.concerns(request):
            return True
        attribute = device.attribute(constraint.match or constraint.distinct)
        if attribute is None:
            return False
        value = value_key(attribute)
        if self._values:
            if constraint.match and (value is None or value != self._values[0]):
                return False
            if constraint.distinct and (value is None or value in self._values):
                return False
        self._values.append(value)
        return True

    def remove(self, request: DeviceRequest) -> None:
        """Remove the device that was added last."""
        if self._constraint.concerns(request):
            self._values.pop()
