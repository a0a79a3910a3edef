"""CBOR as the protocol has it: core deterministic encoding out, and nothing but that subset in.

cbor2 reads and writes; :func:`check` walks over what has come before cbor2 sees it, since no decoder refuses all that
the protocol refuses (indefinite lengths, tags outside values, duplicate keys, deep nesting, large arrays) without
making objects of it first.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import cbor2

from .errors import ProtocolError, SerializationError

MAX_ARRAY = 1 << 20
MAX_MAP = 1 << 16
MAX_DEPTH = 16
VALUE_DEPTH = 64
"""How deep an argument or a result may nest, and the envelope around it with it."""

TAG_TENSOR = 50001
TAG_STATE_DICT = 50002
VALUE_TAGS = frozenset({TAG_TENSOR, TAG_STATE_DICT})


class Encoded(bytes):
    """An item that is encoded already, as the value of a message's field of any type."""


_SHORT = [bytes([first]) for first in range(256)]


def head(major: int, argument: int) -> bytes:
    """Returns the head of an item: its major type and its argument, in the shortest form."""
    if argument < 24:
        return _SHORT[major << 5 | argument]
    if argument < 1 << 8:
        return _SHORT[major << 5 | 24] + _SHORT[argument]
    size, short = (2, 25) if argument < 1 << 16 else (4, 26) if argument < 1 << 32 else (8, 27)
    return _SHORT[major << 5 | short] + argument.to_bytes(size, "big")


def encode(value: Any) -> bytes:
    """Returns the deterministic encoding of a message's plain form: maps, lists, texts, bytes, numbers."""
    try:
        try:
            return cbor2.dumps(_ordered(value), canonical=True)
        except _MixedSigns:
            return _encode(value)
    except (cbor2.CBOREncodeError, TypeError, ValueError, OverflowError) as err:
        raise SerializationError(f"this value cannot be sent: {err}") from err


def scalar(value: Any) -> bytes:
    """Returns the deterministic encoding of a text, bytes, a number, true, false or null of Python's own types. Raises
    SerializationError for a whole number of more than 64 bits, and for text that is not Unicode."""
    kind = type(value)
    if kind is str:
        try:
            data: bytes = value.encode()
        except UnicodeEncodeError as err:
            raise SerializationError(f"this value cannot be sent: {err}") from err
        return head(3, len(data)) + data
    if kind is int:
        if 0 <= value < 1 << 64:
            return head(0, value)
        if -(1 << 63) <= value < 0:
            return head(1, -1 - value)
        raise SerializationError(f"{value} does not fit 64 bits")
    if kind is bytes:
        return head(2, len(value)) + bytes(value)
    encoded: bytes = cbor2.dumps(value, canonical=True)
    return encoded


def keys(found: tuple[Any, ...]) -> tuple[bytes, list[tuple[bytes, int]]]:
    """Returns the head of a map with these keys, and in the order of their encodings each encoded key and its index.
    Raises SerializationError for keys that are equal, and for texts beside numbers."""
    return _cached_keys(found) if len(found) <= 64 else _keys(found)


def _keys(found: tuple[Any, ...]) -> tuple[bytes, list[tuple[bytes, int]]]:
    if len(set(found)) != len(found):
        twice = next(key for i, key in enumerate(found) if key in found[:i])
        raise SerializationError(f"the key {twice!r} is there twice")
    if len({isinstance(key, str) for key in found}) > 1:
        raise SerializationError("the keys of a map are texts or numbers, not both")
    return head(5, len(found)), sorted((scalar(key), i) for i, key in enumerate(found))


_cached_keys = functools.lru_cache(1024)(_keys)
"""The fields of a function's argument are the same with each call."""


def shown(text: str) -> str:
    """Returns a text for people without what is not UTF-8. Bytes that a file name has escape as `\\xe9`, as in Go."""
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:  # half of a surrogate pair
        return text.encode(errors="backslashreplace").decode()


class _MixedSigns(Exception):
    """A map has keys of both signs, which cbor2 sorts in another order."""


def _encode(value: Any) -> bytes:
    """Encodes a value with a map whose keys are of both signs."""
    if isinstance(value, dict):
        if len({isinstance(key, str) for key in value}) > 1:
            raise SerializationError("the keys of a map are texts or numbers, not both")
        for key in value:
            _ordered(key)  # refuses numbers of more than 64 bits
        pairs = sorted((cbor2.dumps(key, canonical=True), _encode(item)) for key, item in value.items())
        return head(5, len(pairs)) + b"".join(key + item for key, item in pairs)
    if isinstance(value, (list, tuple)):
        return head(4, len(value)) + b"".join(_encode(item) for item in value)
    if isinstance(value, cbor2.CBORTag):
        return head(6, value.tag) + _encode(value.value)
    return cbor2.dumps(_ordered(value), canonical=True)


def _ordered(value: Any) -> Any:
    # RFC 8949 sorts keys by the bytes of their encoding; cbor2's canonical form sorts by length first. They differ only
    # for maps whose keys are both numbers and texts, which are refused, or numbers of both signs.
    kind = type(value)
    if kind is str or kind is float or kind is bytes or kind is bool or value is None:
        return value
    if kind is int and 0 <= value < 1 << 63:
        return value
    if isinstance(value, dict):
        kinds = {isinstance(key, str) for key in value}
        if len(kinds) > 1:
            raise SerializationError("the keys of a map are texts or numbers, not both")
        if kinds == {False} and min(value) < 0 <= max(value):
            raise _MixedSigns
        return {key: _ordered(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_ordered(item) for item in value]
    if isinstance(value, cbor2.CBORTag):
        return cbor2.CBORTag(value.tag, _ordered(value.value))
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 64:
        raise SerializationError(f"{value} does not fit 64 bits")
    return value


def decode(body: bytes, *, tags: Iterable[int] = (), depth: int = MAX_DEPTH) -> Any:
    """Reads one item. Raises ProtocolError for what the protocol refuses; of tags only those named are let in, as
    cbor2.CBORTag."""
    check(body, frozenset(tags), depth)
    try:
        return cbor2.loads(body)
    except (cbor2.CBORDecodeError, UnicodeDecodeError, ValueError, TypeError) as err:
        raise ProtocolError(f"a message is not CBOR: {err}") from err


def check(body: bytes, tags: frozenset[int], depth: int) -> None:
    """Walks over one item and raises ProtocolError for anything that a receiver has to refuse. Makes no objects of
    it."""
    end = _check_item(body, 0, tags, depth)
    if end != len(body):
        raise ProtocolError(f"{len(body) - end} bytes behind the item")


_LENGTHS = {24: 1, 25: 2, 26: 4, 27: 8}


def _head(body: bytes, at: int) -> tuple[int, int, int]:
    """Reads the head of the item at `at`: its major type, its argument, and where the head ends."""
    if at >= len(body):
        raise ProtocolError("a message ends within an item")
    first = body[at]
    major, short = first >> 5, first & 31
    at += 1
    if short < 24:
        return major, short, at
    size = _LENGTHS.get(short)
    if size is None:
        raise ProtocolError(
            "a message has an item of indefinite length" if short == 31 else "a message is not well-formed CBOR"
        )
    if at + size > len(body):
        raise ProtocolError("a message ends within an item")
    return major, int.from_bytes(body[at : at + size], "big"), at + size


# The bytes of items whose first byte tells their size, 0 for others: numbers, bytes and texts of less than 24 bytes,
# false, true, null and floats.
_SIZES = bytes(
    1 + (0 if short < 24 else _LENGTHS.get(short, -1))
    if major in (0, 1)
    else 1 + short
    if major in (2, 3) and short < 24
    else {20: 1, 21: 1, 22: 1, 25: 3, 26: 5, 27: 9}.get(short, 0)
    if major == 7
    else 0
    for major in range(8)
    for short in range(32)
)


def _check_item(body: bytes, at: int, tags: frozenset[int], depth: int) -> int:
    begin = at
    if at < len(body) and (size := _SIZES[body[at]]):
        if at + size > len(body):
            raise ProtocolError("a message ends within an item")
        return at + size
    major, argument, at = _head(body, at)
    if major in (0, 1):
        return at
    if major in (2, 3):
        end = at + argument
        if end > len(body):
            raise ProtocolError("a message ends within an item")
        return end  # cbor2 checks that text is UTF-8
    if major == 7:
        _check_simple(body[begin], argument)
        return at
    if depth == 0:
        raise ProtocolError("a message nests too deeply")
    if major == 4:
        if argument > MAX_ARRAY:
            raise ProtocolError(f"an array of {argument} elements")
        for _ in range(argument):
            at = _check_item(body, at, tags, depth - 1)
        return at
    if major == 5:
        return _check_map(body, at, argument, tags, depth)
    if argument not in tags:
        raise ProtocolError(f"a message has the tag {argument}")
    return _check_item(body, at, tags, depth - 1)


def _check_simple(first: int, argument: int) -> None:
    short = first & 31
    if short in (20, 21, 22) or short in (25, 26, 27):  # false, true, null, floats
        return
    raise ProtocolError(f"a message has the simple value {argument}")


def _check_map(body: bytes, at: int, pairs: int, tags: frozenset[int], depth: int) -> int:
    if pairs > MAX_MAP:
        raise ProtocolError(f"a map of {pairs} pairs")
    seen: set[tuple[int, int] | tuple[int, bytes]] = set()
    low, small = -1, 0
    for _ in range(pairs):
        if at < len(body) and low < body[at] < 24:  # small numbers in order, as the keys of messages are
            low = body[at]
            small |= 1 << low
            at = _check_item(body, at + 1, tags, depth - 1)
            continue
        low = 24
        major, argument, end = _head(body, at)
        key: tuple[int, int] | tuple[int, bytes]
        if major in (0, 1):
            key = (major, argument)
        elif major in (2, 3):
            key = (major, body[end : end + argument])
        else:
            raise ProtocolError("a key of a map is neither a number nor a text")
        if key in seen or (major == 0 and argument < 24 and small >> argument & 1):
            raise ProtocolError("a map has the same key twice")
        seen.add(key)
        at = _check_item(body, at, tags, depth - 1)
        at = _check_item(body, at, tags, depth - 1)
    return at
