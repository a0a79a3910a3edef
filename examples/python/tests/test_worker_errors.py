"""Errors of workers' functions at their callers, and the threads of workers after an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

import cbor2
import numpy as np
import pytest
from conftest import Owner, eventually

import sharedtensor as st
from sharedtensor import messages, workers
from sharedtensor.frames import Frame
from sharedtensor.op import Op
from sharedtensor.session import Session


@pytest.fixture(scope="module")
def owner(programs: Any) -> Iterator[Owner]:
    """An owner that accepts offers."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="st") as name:
        path = f"{name}/s.sock"
        found = Owner([str(programs / "sharedtensor"), "serve", "--socket", path, "--offers"], path)
        yield found
        found.stop()


@pytest.fixture
def caller(owner: Owner) -> Iterator[st.Client]:
    with st.connect(owner.socket, framework="numpy", timeout=30) as c:
        yield c


class Own(BaseException):
    """A BaseException that is not an Exception."""


class Unreadable(Exception):
    def __str__(self) -> str:
        raise SystemExit("within __str__")


class Hostile(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise SystemExit("within a mapping")

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class OddCode(st.Error):
    code = "seven"  # type: ignore[assignment]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def with_data(data: Any) -> st.ApplicationError:
    return st.ApplicationError("used up", type="quota", data=data)


ERRORS: dict[str, BaseException] = {
    "an exit": SystemExit(3),
    "an interrupt": KeyboardInterrupt(),
    "the exit of a generator": GeneratorExit(),
    "a cancelled coroutine": asyncio.CancelledError(),
    "the end of an iterator": StopIteration(5),
    "an exception of its own": Own("own"),
    "a text that cannot be read": Unreadable(),
    "a text that is no UTF-8": ValueError("\udcff"),
    "a long text": ValueError("ä" * 10_000),
    "a long name": type("E" * 500, (Exception,), {})("long"),
    "a type that is no text": st.ApplicationError("odd", type=5),  # type: ignore[arg-type]
    "a code that is no number": OddCode("odd"),
    "data: an object": with_data(object()),
    "data: a set": with_data({1, 2}),
    "data: a tag": with_data(cbor2.CBORTag(50001, [1, 2])),
    "data: a complex number": with_data(1j),
    "data: an array": with_data(np.ones(3)),
    "data: too large": with_data(b"x" * (70 << 20)),
    "data: larger than an error's": with_data("x" * (33 << 10)),
    "data: a large number": with_data(1 << 70),
    "data: 4 levels": with_data(nested(4)),
    "data: 5 levels": with_data(nested(5)),
    "data: 50 levels": with_data(nested(50)),
    "data: 200 levels": with_data(nested(200)),
    "data: endless": with_data(endless()),
    "data: a mapping that fails": with_data(Hostile()),
    "data: keys of two kinds": with_data({1: 1, "a": 2}),
}


@pytest.mark.parametrize("name", ERRORS)
def test_no_exception_ends_the_thread_of_a_function(owner: Owner, caller: st.Client, name: str) -> None:
    def fail() -> None:
        raise ERRORS[name]

    def fail_later() -> Iterator[int]:
        yield 1
        raise ERRORS[name]

    def fine() -> int:
        return 7

    with st.connect(owner.socket) as c, c.offer(fail=fail, fail_later=fail_later, fine=fine):
        with pytest.raises(st.Error) as caught:
            caller.call("fail")
        assert not isinstance(caught.value, (st.DeadlineExceededError, st.WorkerGoneError))
        assert caller.call("fine") == 7
        stream = caller.stream("fail_later")
        assert next(stream) == 1
        with pytest.raises(st.Error):
            next(stream)
        assert caller.call("fine") == 7


def test_errors_name_their_class_and_omitted_data(owner: Owner, caller: st.Client) -> None:
    def fail(name: str) -> None:
        raise ERRORS[name]

    def caught(name: str) -> st.Error:
        with pytest.raises(st.ApplicationError) as found:
            caller.call("fail", name=name)
        return found.value

    with st.connect(owner.socket) as c, c.offer(fail=fail):
        assert (caught("an exit").type, str(caught("an exit"))) == ("SystemExit", "3")
        assert caught("an interrupt").type == "KeyboardInterrupt"
        assert "cannot be sent" in str(caught("data: an object")) and "used up" in str(caught("data: an object"))
        assert caught("data: an object").type == "quota"
        assert caught("data: 4 levels").data == nested(4), "as many levels as servers pass on"
        assert "nests too deeply" in str(caught("data: 5 levels"))
        long = str(caught("a long text"))
        assert len(long.encode()) <= 4096 and long.endswith("bytes cut)")


def test_data_of_an_error_arrives_in_plain_types(owner: Owner, caller: st.Client) -> None:
    when = datetime(2026, 1, 2, tzinfo=timezone.utc)

    def fail() -> None:
        raise with_data({"left": np.int64(3), "rate": np.float32(0.5), "at": when, "name": np.str_("n"), "l": (1, 2)})

    with st.connect(owner.socket) as c, c.offer(fail=fail):
        with pytest.raises(st.ApplicationError) as caught:
            caller.call("fail")
    want = {"left": 3, "rate": 0.5, "at": "2026-01-02T00:00:00.000000000Z", "name": "n", "l": [1, 2]}
    assert caught.value.data == want


def test_every_error_can_be_encoded() -> None:
    for name, err in ERRORS.items():
        sent = workers._sent(err)
        body = messages.Answer(call=1, error=sent).encode()
        assert len(body) < 64 << 10, name
        assert len(sent.message.encode()) <= 4096 and len(sent.type.encode()) <= 128, name


def test_an_offer_whose_thread_ends_is_withdrawn(
    owner: Owner, caller: st.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fine() -> int:
        return 7

    with st.connect(owner.socket) as c, c.offer(fine=fine) as offer:

        def take_and_end() -> bool:
            offer._jobs.get()
            raise SystemExit

        assert caller.call("fine") == 7
        monkeypatch.setattr(offer, "_serve_one", take_and_end)
        with pytest.raises(st.InternalError, match="thread"):
            for _ in range(3):  # the thread may run one more call
                assert caller.call("fine") == 7
        eventually(lambda: not caller.endpoints(), "the owner keeps an offer without a thread")
        with pytest.raises(st.InternalError, match="SystemExit"):
            offer.wait(15)
        with pytest.raises(st.EndpointNotFoundError):
            caller.call("fine")


def test_an_offer_closed_while_it_begins_is_withdrawn(
    owner: Owner, caller: st.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with st.connect(owner.socket, reconnect=0) as c, st.connect(owner.socket) as other:
        offer = c.offer(fine=lambda: 7)
        c._session().close()
        eventually(lambda: not caller.endpoints(), "the offer outlives its connection")
        other.ping()  # so that request ids differ from the first session's
        other.ping()
        session = other._session()
        wait: Callable[..., Any] = Session.wait

        def close_meanwhile(self: Session, *rest: Any) -> Any:
            frame = wait(self, *rest)
            if self is session:
                monkeypatch.undo()
                offer.close()
            return frame

        monkeypatch.setattr(Session, "wait", close_meanwhile)
        offer.begin(session)
        eventually(lambda: not caller.endpoints(), "the second session keeps the offer")


def test_an_offer_that_has_ended_is_collected(owner: Owner) -> None:
    import weakref

    class Weights:
        def __call__(self) -> int:
            return 1

    with st.connect(owner.socket) as c:
        weights = Weights()
        gone = weakref.ref(weights)
        with c.offer(fine=weights):
            pass
        del weights
        eventually(lambda: gone() is None, "the session keeps the functions of an offer that has ended")


class Answers:
    """A session that records answers."""

    def __init__(self) -> None:
        self.list: list[messages.Answer] = []

    def later(self, what: Callable[[], None]) -> None:
        what()

    def request(self, op: int, body: messages.Answer) -> Frame:
        assert op == Op.ANSWER
        self.list.append(body)
        return Frame(kind=2, id=1, body=b"")


def test_calls_after_the_end_of_an_offer_are_declined() -> None:
    answers = Answers()
    receiver = workers._Receiver(None, answers)  # type: ignore[arg-type]
    receiver(Frame(kind=6, id=1, body=messages.OfferEvent(kind=1, call=3, endpoint="x").encode()))
    assert [(a.call, a.error.code, a.error.type) for a in answers.list if a.error] == [(3, 22, "busy")]


def test_a_function_cannot_decline(owner: Owner, caller: st.Client) -> None:
    runs = 0

    def declines() -> None:
        nonlocal runs
        runs += 1
        raise st.UnavailableError("the server that it calls is busy", type="busy")

    with st.connect(owner.socket) as c, c.offer(declines=declines):
        with pytest.raises(st.Error, match="busy") as caught:
            caller.call("declines")
        assert caught.value.code == 7
        assert runs == 1


def test_calls_move_to_another_worker_when_one_closes(owner: Owner, caller: st.Client) -> None:
    def moved() -> int:
        return 1

    with st.connect(owner.socket) as stays, st.connect(owner.socket) as leaves, stays.offer(moved=moved):
        for _ in range(20):
            with leaves.offer(moved=moved):
                assert caller.call("moved") == 1
            assert caller.call("moved") == 1
