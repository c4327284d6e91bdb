"""The reasons for which an action cannot be carried out on a fleet, before any Policy is read."""

from __future__ import annotations

import enum


class Impossible(enum.StrEnum):
    """The reasons why an action cannot be carried out."""

    BAD_ACTION = "BadAction"
    NO_SUCH_TARGET = "NoSuchTarget"
    NOTHING_TO_DO = "NothingToDo"
    NOT_SERVED = "NotServed"
    IN_USE = "InUse"
    NOT_MOVABLE = "NotMovable"
    NO_ROOM = "NoRoom"
    QUEUE_NOT_EMPTY = "QueueNotEmpty"
    QUEUE_UNKNOWN = "QueueUnknown"
    OFF_TOPIC = "OffTopic"


class ActionImpossible(Exception):
    """An action that cannot be carried out on this fleet."""

    def __init__(self, reason: Impossible, message: str) -> None:
        super().__init__(message)
        self.reason = reason
