"""The devices that a request selects, by its class and its own selectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.api.kinds import Object
from bidplane.core.cel import CelError
from bidplane.core.cel import devices as cel
from bidplane.core.devices.claims.hints import hint
from bidplane.core.devices.claims.model import (
    ClaimError,
    Device,
    DeviceId,
    DeviceRequest,
    class_selectors,
)

Classes = Mapping[str, Object]  # by name


class DeviceMatcher:
    """
    An evaluator of selectors that caches its results.

    The cache key is only what an expression mentions, so that of a thousand devices alike in that,
    one is evaluated.
    """

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._results: dict[tuple[str, Any], bool] = {}
        self._values: dict[DeviceId, tuple[Device, Any]] = {}

    def of_class(self, claim: str, request: DeviceRequest) -> tuple[str, ...]:
        """
        Return the selectors of the request's class; raises `ClaimError` if there is no such class.
        """
        device_class = self._classes.get(request.device_class)
        if device_class is None:
            raise ClaimError(
                f"claim {claim}, request {request.full_name}: could not retrieve device class"
                f" {request.device_class}: there are {', '.join(sorted(self._classes)) or 'none'}"
            )
        return class_selectors(device_class)

    def selects(self, claim: str, request: DeviceRequest, device: Device) -> bool:
        """Return whether the request selects the device; raises `ClaimError`."""
        for owner, sources in (
            (f"class {request.device_class}", self.of_class(claim, request)),
            (f"claim {claim}, request {request.full_name}", request.selectors),
        ):
            for index, source in enumerate(sources):
                try:
                    if not self._matches(source, device):
                        return False
                except CelError as error:
                    raise ClaimError(
                        f"{owner}, selector #{index} on device {device.id}: {error}"
                        f"{hint(source, device.id.driver, device.raw.get('attributes') or ())}"
                    ) from None
        return True

    def _matches(self, source: str, device: Device) -> bool:
        """Return whether an expression is true of a device."""
        selector = cel.compile(source)
        attributes, capacity = self._values_of(device)
        key = (
            source,
            (
                device.id.driver,
                device.multiple,
                _relevant_values(selector, attributes),
                _relevant_values(selector, capacity),
            ),
        )
        result = self._results.get(key)
        if result is None:
            result = selector.matches(device.id.driver, device.multiple, attributes, capacity)
            self._results[key] = result
        return result

    def _values_of(self, device: Device) -> tuple[cel.Values, cel.Values]:
        """Return the attributes and capacities of a device."""
        cached = self._values.get(device.id)
        if cached is None or cached[0] is not device:
            cached = (device, device.values())
            self._values[device.id] = cached
        values: tuple[cel.Values, cel.Values] = cached[1]
        return values


def _relevant_values(selector: cel.DeviceSelector, values: cel.Values) -> Any:
    """Return, as a cache key, the values that an expression depends on."""
    return tuple(
        (
            domain if selector.depends_on(domain) else "",
            tuple(
                (name, _frozen(value)) for name, value in named.items() if selector.depends_on(name)
            ),
        )
        for domain, named in values.items()
    )


def _frozen(value: Any) -> Any:
    """Return a value as a hashable key."""
    if isinstance(value, dict):
        return tuple(value.items())
    if isinstance(value, list):
        return tuple(_frozen(element) for element in value)
    return type(value), value
