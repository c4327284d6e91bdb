"""Requests of people and of Proposals on an Endpoint of the host, carried into its plane once."""

from __future__ import annotations

from contextlib import suppress

import structlog

from bidplane.api import labels
from bidplane.api.kinds import DEPLOYMENT, ENDPOINT, Draft, Object
from bidplane.api.objects import name_of, namespace_of, spec_of
from bidplane.api.reading import Endpoint
from bidplane.core.bidding.asks import ask_of
from bidplane.core.hosting import translation
from bidplane.errors import ApiError, Conflict, NotFound, Unavailable
from bidplane.kube.client import KubeClient

log = structlog.get_logger(__name__)

_REQUESTS = (labels.ENDPOINT_REPLICAS, labels.ENDPOINT_RETRY)


def is_asked(endpoint: Endpoint) -> bool:
    """Tell if something was asked for that was not carried into the plane yet."""
    return any(endpoint.annotations.get(mark) for mark in _REQUESTS)


async def carry(
    host: KubeClient, plane: KubeClient, endpoint: Endpoint, deployment: Object | None
) -> None:
    """Set the replicas and restart the rollout that were asked for, and take the requests back."""
    replicas, retry = (endpoint.annotations.get(mark) for mark in _REQUESTS)
    original = translation.origin(endpoint.json)
    if replicas and replicas.isdecimal() and original is not None:
        namespace, name = original
        try:
            await plane.patch(ENDPOINT, name, {"spec": {"replicas": int(replicas)}}, namespace)
        except (Conflict, Unavailable):
            raise  # try again
        except ApiError as error:  # another field of its spec does not go with it
            log.warning("an Endpoint was not scaled", endpoint=endpoint.name, error=str(error))
    if retry and deployment is not None:
        template: Draft = {"metadata": {"annotations": {labels.RESTARTED_AT: retry}}}
        change: Draft = {"spec": {"template": template}}
        with suppress(NotFound):
            await plane.patch(DEPLOYMENT, name_of(deployment), change, namespace_of(deployment))
    answered: Draft = {"metadata": {"annotations": dict.fromkeys(_REQUESTS)}}
    with suppress(NotFound):
        await host.patch(ENDPOINT, endpoint.name, answered, endpoint.namespace)


def template_gpus(deployment: Object | None) -> int:
    """Return the GPUs that one pod of a Deployment asks for; 0 of one that cannot be read."""
    if deployment is None:
        return 0
    template = spec_of(deployment).get("template") or {}
    pod = {"metadata": template.get("metadata") or {}, "spec": template.get("spec") or {}}
    try:
        return ask_of(pod).gpus
    except (KeyError, ValueError):
        return 0
