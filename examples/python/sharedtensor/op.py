"""The protocol's numbers: operations, kinds of frames, kinds of events, types of devices."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """The kinds of frames."""

    HELLO = 1
    REQUEST = 2
    RESPONSE = 3
    ERROR = 4
    CANCEL = 5
    EVENT = 6
    GOODBYE = 7
    FILES = 8


class Op(IntEnum):
    """The operations, by the names of protocol.cddl."""

    PING = 1
    ACQUIRE = 2
    RELEASE = 3
    PUBLISH = 4
    WITHDRAW = 5
    LIST = 6
    INFO = 7
    WATCH = 8
    UNWATCH = 9
    DIGESTS = 10
    ROLLBACK = 11
    CALL = 32
    ENDPOINTS = 33
    SERVER_INFO = 34
    RETURN_SLABS = 35
    OFFER = 36
    ANSWER = 37
    SUBMIT = 64
    TASK = 65
    WAIT_FOR_TASK = 66
    TASK_RESULT = 67
    CANCEL_TASK = 68
    TASKS = 69
    WATCH_TASKS = 70
    INVALIDATE_CALL = 96
    INVALIDATE_ENDPOINT = 97
    OBJECT_INFO = 128
    RELEASE_OBJECT = 129
    WATCH_OBJECTS = 130
    REFER_TO_OBJECT = 131
    OBJECTS = 132
    DESTROY_OBJECT = 133
    STREAM = 160
    STREAM_MORE = 161


class EventKind(IntEnum):
    """The kinds of events of a name."""

    PUBLISHED = 1
    WITHDRAWN = 2


class TaskEventKind(IntEnum):
    """The kinds of events of a task."""

    LISTED = 1
    CHANGED = 2
    MISSED = 3


class OfferEventKind(IntEnum):
    """The kinds of events of an offer."""

    CALL = 1
    CANCEL = 2


HOST = 1
"""DLPack's type of host memory."""
CUDA = 2
"""DLPack's type of CUDA memory."""
