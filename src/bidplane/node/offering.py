"""The offer of a declared fleet: a pool for each product, and the class that claims its devices."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api import labels
from bidplane.api.kinds import DEVICE_CLASS, POOL
from bidplane.api.manifests import manifest
from bidplane.api.pool import PoolSpec
from bidplane.api.shape import fields_of
from bidplane.errors import AlreadyExists
from bidplane.kube.client import KubeClient
from bidplane.node.fleet import Fleet, PoolDeclaration
from bidplane.node.inventory.slices import DRIVER


async def offer(host: KubeClient, fleet: Fleet) -> None:
    """Create a pool for each product of the fleet; existing pools stay unchanged."""
    device_class = {
        "apiVersion": DEVICE_CLASS.api_version,
        "kind": DEVICE_CLASS.kind,
        "metadata": {"name": labels.DEVICE_CLASS},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }
    with suppress(AlreadyExists):
        await host.create(DEVICE_CLASS, device_class)
    for name, spec in pool_specs(fleet).items():
        with suppress(AlreadyExists):
            await host.create(POOL, manifest(POOL, name, spec))


def pool_specs(fleet: Fleet) -> dict[str, PoolSpec]:
    """By name, the pool of each product: on the declared terms, or else on the default ones."""
    declared = {pool.product: pool for pool in fleet.pools}
    terms = {
        product: declared.get(product, PoolDeclaration(product=product))
        for product in fleet.products()
    }
    return {
        product.lower(): PoolSpec(**fields_of(PoolDeclaration, declaration))
        for product, declaration in terms.items()
    }
