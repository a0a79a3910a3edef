"""Both implementations decode and encode 200 random messages to the same bytes."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from test_messages import cls_of

from sharedtensor.message import Message

Ask = Callable[[str], str]


@pytest.fixture(scope="module")
def go(programs: Path) -> Iterator[Ask]:
    process = subprocess.Popen([programs / "crosscheck"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    pipes = process.stdin, process.stdout

    def ask(line: str) -> str:
        print(line, file=pipes[0], flush=True)
        return pipes[1].readline().strip()

    yield ask
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def names_of(go: Ask) -> list[str]:
    names = sorted(go("names").split())
    assert len(names) >= 40
    return names


def test_messages_from_go_round_trip(go: Ask) -> None:
    names = names_of(go)
    sizes = 0
    for seed in range(200):
        name = names[seed % len(names)]
        sent = go(f"random {name} {seed}")
        assert not sent.startswith("error"), sent
        message = cls_of(name).decode(bytes.fromhex(sent))
        assert message.encode().hex() == sent, f"{name} with seed {seed}"
        sizes += len(sent) // 2
    assert sizes > 10_000, "the messages are all but empty"


def test_messages_from_python_round_trip(go: Ask) -> None:
    names = names_of(go)
    for seed in range(200):
        name = names[seed % len(names)]
        body = random_message(cls_of(name), random.Random(seed), 3).encode().hex()
        assert go(f"again {name} {body}") == body, f"{name} with seed {seed}"


def test_both_refuse_invalid_messages(go: Ask) -> None:
    for body in ("bf0100ff", "a20100" + "0100", "c100", "a1016161", "a10181" * 20 + "00", "a0a0"):
        assert go(f"again ping {body}").startswith("error"), body
        with pytest.raises(Exception):  # noqa: B017
            cls_of("ping").decode(bytes.fromhex(body))


def random_message(cls: type[Message], r: random.Random, depth: int) -> Message:
    hints = get_type_hints(cls, include_extras=True)
    values = {f.name: random_value(hints[f.name], r, depth) for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if cls is cls_of("request"):  # its metadata is restricted
        values["metadata"] = {
            "".join(r.choices("az09-_.", k=r.randint(1, 9))): "".join(r.choices(' ~aZ"\\', k=r.randrange(9)))
            for _ in range(r.randrange(4))
        }
    return cls(**values)


def random_value(hint: Any, r: random.Random, depth: int) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        base, rule = get_args(hint)
        if base is bytes:
            return r.randbytes(rule)
        low, high = rule
        return max(low, min(high, r.randint(low, high) >> r.randrange(64)))
    if origin is list:
        return [random_value(get_args(hint)[0], r, depth - 1) for _ in range(r.randrange(4) if depth > 0 else 0)]
    if origin is dict:
        return {text(r): text(r) for _ in range(r.randrange(4))}
    if origin in (typing.Union, types.UnionType):
        return None if depth <= 0 or r.random() < 0.5 else random_value(get_args(hint)[0], r, depth)
    if isinstance(hint, type) and issubclass(hint, Message):
        return random_message(hint, r, depth - 1)
    if hint is Any:
        return r.choice(
            [
                {"x": r.gauss(0, 1), "y": [1, None, True]},
                text(r),
                r.randrange(1 << 64),
                -r.randrange(1 << 60),
                b"\0\xff",
                1.5,
            ]
        )
    return {str: text(r), bytes: r.randbytes(r.randrange(300)), bool: r.random() < 0.5}[hint]


def text(r: random.Random) -> str:
    return "".join(r.choice('abc/."\\ \n\0äß漢🙂') for _ in range(r.randrange(30)))
