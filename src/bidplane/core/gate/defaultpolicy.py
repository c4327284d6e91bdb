"""The Policy of a fresh installation: owners within limits, everybody else with an approval."""

from __future__ import annotations

from bidplane.api.gate.policy import (
    ActorRole,
    PolicyLimit,
    PolicyRule,
    PolicySpec,
    Protection,
    Ruling,
)
from bidplane.api.labels import OPERATOR_PART, PINNED

DEFAULT_POLICY_NAME = "default"
_HOUR, _DAY = 3600, 86_400

DEFAULT_POLICY = PolicySpec(
    rules=[
        PolicyRule(name="owners", when="actor.role == 'owner'", ruling=Ruling.ALLOW),
        PolicyRule(
            name="people",
            when="actor.role in ['operator', 'approver', 'finance']",
            ruling=Ruling.APPROVE,
        ),
        PolicyRule(
            name="pilot",
            when="actor.role == 'pilot'",
            ruling=Ruling.APPROVE,
            approvers=[ActorRole.OWNER, ActorRole.APPROVER, ActorRole.OPERATOR],
            expire_seconds=12 * _HOUR,
        ),
    ],
    limits=[
        PolicyLimit(
            name="hour", window_seconds=_HOUR, devices=512, pods=1000, agents=200, spend="100000"
        ),
        PolicyLimit(name="day", window_seconds=_DAY, spend="500000"),
        PolicyLimit(
            name="pilot-hour",
            window_seconds=_HOUR,
            roles=[ActorRole.PILOT],
            devices=32,
            pods=20,
            agents=5,
            spend="1000",
        ),
    ],
    protections=[
        Protection(
            name="pinned",
            when=f"'{PINNED}' in target.annotations",
            message=f"a person pinned it: remove its annotation {PINNED} first",
        ),
        Protection(
            name="operator-parts",
            when=f"'{OPERATOR_PART}' in target.labels",
            message="it is a part of the pilot's own logging and audit",
        ),
        Protection(
            name="production",
            when="actor.role == 'pilot' && ['env', 'environment'].exists(key,"
            " key in target.labels && target.labels[key] == 'production')",
            message="the pilot does not touch production",
        ),
    ],
)
