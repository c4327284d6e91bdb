"""Which devices a request means: what its class and its own selectors say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.api.kinds import Object
from bidplane.core.cel import CelError
from bidplane.core.cel import devices as cel
from bidplane.core.claims.hints import hint
from bidplane.core.claims.model import ClaimError, Device, DeviceId, Request, class_selectors

Classes = Mapping[str, Object]  # by name


class Selecting:
    """
    Remembers answers. A device is asked about only what the expression mentions: of a thousand
    devices that are alike in that, one is asked.
    """

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._said: dict[tuple[str, Any], bool] = {}
        self._values: dict[DeviceId, tuple[Device, Any]] = {}

    def of_class(self, claim: str, request: Request) -> tuple[str, ...]:
        found = self._classes.get(request.device_class)
        if found is None:
            raise ClaimError(
                f"claim {claim}, request {request.full_name}: could not retrieve device class"
                f" {request.device_class}: there are {', '.join(sorted(self._classes)) or 'none'}"
            )
        return class_selectors(found)

    def selects(self, claim: str, request: Request, device: Device) -> bool:
        """Whether the request means the device; raises `ClaimError`."""
        for whose, sources in (
            (f"class {request.device_class}", self.of_class(claim, request)),
            (f"claim {claim}, request {request.full_name}", request.selectors),
        ):
            for at, source in enumerate(sources):
                try:
                    if not self._matches(source, device):
                        return False
                except CelError as error:
                    raise ClaimError(
                        f"{whose}, selector #{at} on device {device.id}: {error}"
                        f"{hint(source, device.id.driver, device.raw.get('attributes') or ())}"
                    ) from None
        return True

    def _matches(self, source: str, device: Device) -> bool:
        selector = cel.compile(source)
        attributes, capacity = self._values_of(device)
        key = (
            source,
            (
                device.id.driver,
                device.multiple,
                _part(selector, attributes),
                _part(selector, capacity),
            ),
        )
        said = self._said.get(key)
        if said is None:
            said = selector.matches(device.id.driver, device.multiple, attributes, capacity)
            self._said[key] = said
        return said

    def _values_of(self, device: Device) -> tuple[cel.Values, cel.Values]:
        known = self._values.get(device.id)
        if known is None or known[0] is not device:
            known = (device, device.values())
            self._values[device.id] = known
        values: tuple[cel.Values, cel.Values] = known[1]
        return values


def _part(selector: cel.Selector, values: cel.Values) -> Any:
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
    if isinstance(value, dict):
        return tuple(value.items())
    if isinstance(value, list):
        return tuple(_frozen(one) for one in value)
    return type(value), value
