"""The outcome of a request, and the threads of a session."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

import sharedtensor as st
from sharedtensor.frames import Frame
from sharedtensor.session import Pending


class Interposed:
    """A lock that runs a function once, right after its first release."""

    def __init__(self, between: Any) -> None:
        self.lock = threading.Lock()
        self.between = between

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        between, self.between = self.between, None
        if between is not None:
            between()


def frame_with_descriptor() -> tuple[Frame, int]:
    fd = os.open("/dev/null", os.O_RDONLY)
    return Frame(3, 1, b"", [fd]), fd


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_finish_checks_and_sets_under_one_hold_of_the_lock() -> None:
    pending = Pending(1)
    calls: list[Pending] = []
    pending.when_done(calls.append)
    frame, fd = frame_with_descriptor()
    pending._lock = Interposed(lambda: pending.finish(None, st.CanceledError("too late")))  # type: ignore[assignment]
    pending.finish(frame, None)
    assert calls == [pending] and pending.wait(0)
    assert pending.result() is frame and is_open(fd), "the second outcome replaced the first"
    frame.close()


def test_second_answer_is_discarded() -> None:
    discarded: list[Frame] = []
    pending = Pending(1, discarded.append)
    pending.finish(None, st.CanceledError("left"))
    frame, fd = frame_with_descriptor()
    pending.finish(frame, None)
    assert discarded == [frame] and not is_open(fd)
    with pytest.raises(st.CanceledError):
        pending.result()


def test_abandoning_discards_an_unread_answer() -> None:
    discarded: list[Frame] = []
    pending = Pending(1, discarded.append)
    frame, fd = frame_with_descriptor()
    pending.finish(frame, None)
    pending.abandon(st.CanceledError("left"))
    pending.abandon(st.CanceledError("left again"))
    assert discarded == [frame] and not is_open(fd)
    with pytest.raises(st.CanceledError, match="left"):
        pending.result()


def test_a_discard_that_fails_closes_the_frame() -> None:
    def fail(_: Frame) -> None:
        raise st.ProtocolError("no message")

    pending = Pending(1, fail)
    pending.finish(None, st.CanceledError("left"))
    frame, fd = frame_with_descriptor()
    with pytest.raises(st.ProtocolError):
        pending.finish(frame, None)
    assert not is_open(fd)


def test_a_frame_that_is_dropped_closes_its_descriptors() -> None:
    frame, fd = frame_with_descriptor()
    del frame
    assert not is_open(fd)


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit], ids=["exception", "exit"])
def test_a_job_that_fails_does_not_stop_the_next(
    client: st.Client, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_type))
    done = threading.Event()

    def fail() -> None:
        raise error

    session = client._session()
    session.later(fail)
    session.later(done.set)
    assert done.wait(15) and reported == [error]
