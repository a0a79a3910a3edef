"""How a message class becomes CBOR and back.

A message is a dataclass whose n-th field has the key n, or the key that KEYS has for it, as in protocol.cddl. A field
without a default is always written; one with a default is left out when it has that value. Reading takes a missing key
for zero, empty or false, and ignores keys it does not know.
"""

from __future__ import annotations

import dataclasses
import operator
import typing
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

from . import cbor
from .errors import ProtocolError, SerializationError

U8 = Annotated[int, (0, (1 << 8) - 1)]
U16 = Annotated[int, (0, (1 << 16) - 1)]
U32 = Annotated[int, (0, (1 << 32) - 1)]
U64 = Annotated[int, (0, (1 << 64) - 1)]
I32 = Annotated[int, (-(1 << 31), (1 << 31) - 1)]
I64 = Annotated[int, (-(1 << 63), (1 << 63) - 1)]
Size = Annotated[int, (0, (1 << 63) - 1)]
"""Bytes, or nanoseconds: not negative."""
File = Annotated[int, (-1, (1 << 31) - 1)]
UUID = Annotated[bytes, 16]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class _Codec(Generic[T]):
    """How one type of field is written, read, and what a missing one is. `encode` returns the bytes of what `write`
    returns, without making it first."""

    write: Callable[[T], Any]
    read: Callable[[Any], T]
    zero: Callable[[], T]
    encode: Callable[[T], bytes]


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a message: its name, its key, whether it is always written, and its codec."""

    name: str
    key: int
    always: bool
    codec: _Codec[Any]
    zero: Any
    prefix: bytes


class Message:
    """The base of all messages. Instances are plain values."""

    __slots__ = ()
    KEYS: ClassVar[dict[str, int]] = {}
    _fields: ClassVar[list[Field] | None] = None
    _has_value: ClassVar[bool | None] = None

    @classmethod
    def keyed_fields(cls) -> list[Field]:
        """The fields in the order of their keys."""
        own_fields: list[Field] | None = cls.__dict__.get("_fields")
        if own_fields is None:
            hints = get_type_hints(cls, include_extras=True)
            own = [f for f in dataclasses.fields(cls) if not f.name.startswith("_")]  # type: ignore[arg-type]
            own_fields = cls._fields = [
                Field(
                    f.name,
                    key,
                    f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING,
                    codec,
                    codec.zero(),
                    cbor.head(0, key),
                )
                for key, f, codec in ((cls.KEYS.get(f.name, n), f, _codec(hints[f.name])) for n, f in enumerate(own, 1))
            ]
        return own_fields

    def plain(self) -> dict[int, Any]:
        """Returns the message as a map that cbor.encode takes. Raises SerializationError for a value out of its
        range."""
        out: dict[int, Any] = {}
        for field in self.keyed_fields():
            value = getattr(self, field.name)
            if not field.always and (value is None or (not isinstance(value, Message) and value == field.zero)):
                continue
            try:
                out[field.key] = field.codec.write(value)
            except (TypeError, ValueError) as err:
                raise SerializationError(f"{type(self).__name__}.{field.name}: {err}") from err
        return out

    @classmethod
    def from_plain(cls: type[M], value: Any) -> M:
        """Reads the message from what cbor.decode returned. Raises ProtocolError for what does not have its form."""
        if not isinstance(value, dict):
            raise ProtocolError(f"a {cls.__name__} is not a map")
        found: dict[str, Any] = {}
        for field in cls.keyed_fields():
            item = value.get(field.key)
            if item is None:
                if field.always:
                    found[field.name] = field.codec.zero()
                continue  # the default is the zero of the type
            try:
                found[field.name] = field.codec.read(item)
            except (TypeError, ValueError) as err:
                raise ProtocolError(f"{cls.__name__}.{field.name}: {err}") from err
        return cls(**found)

    def encode(self) -> bytes:
        """Returns the deterministic encoding of `plain`. Raises SerializationError for a value out of its range."""
        parts = [b""]
        for field in self.keyed_fields():
            value = getattr(self, field.name)
            if not field.always and (value is None or (not isinstance(value, Message) and value == field.zero)):
                continue
            try:
                parts.append(field.prefix + field.codec.encode(value))
            except (TypeError, ValueError) as err:
                raise SerializationError(f"{type(self).__name__}.{field.name}: {err}") from err
        parts[0] = cbor.head(5, len(parts) - 1)
        return b"".join(parts)

    @classmethod
    def decode(cls: type[M], body: bytes) -> M:
        """Reads a whole body. Raises ProtocolError for what is not a message of this kind."""
        if cls.__dict__.get("_has_value") is None:
            cls._has_value = any(field.codec is _ANY for field in cls.keyed_fields())
        if cls._has_value:
            return cls.from_plain(cbor.decode(body, tags=cbor.VALUE_TAGS, depth=cbor.VALUE_DEPTH))
        return cls.from_plain(cbor.decode(body))


M = TypeVar("M", bound=Message)


def _expect(value: Any, kind: type[T], what: str) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{type(value).__name__} where {what} belongs")
    return value


def _integer(low: int, high: int) -> _Codec[int]:
    def check(value: Any) -> int:
        number = _expect(value, int, "a number")
        if not low <= number <= high:
            raise ValueError(f"{number} is not within {low}..{high}")
        return int(number)

    def write(value: Any) -> int:  # numbers of numpy and of enums too
        if type(value) is int:
            return check(value)
        return check(value if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value))

    def encode(value: Any) -> bytes:
        number = write(value)
        return cbor.head(0, number) if number >= 0 else cbor.head(1, -1 - number)

    return _Codec(write, check, int, encode)


def _fixed(size: int) -> _Codec[bytes]:
    def check(value: Any) -> bytes:
        data = _expect(value, bytes, f"{size} bytes")
        if len(data) != size:
            raise ValueError(f"{len(data)} bytes where {size} belong")
        return data

    return _Codec(check, check, lambda: bytes(size), lambda value: cbor.head(2, size) + check(value))


def _identity(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    return value if type(value) is str else str.__str__(_expect(value, str, "a text"))  # that of an enum's member too


def _encode_text(value: Any) -> bytes:
    try:
        data = _text(value).encode()
    except UnicodeEncodeError as err:
        raise SerializationError(f"this value cannot be sent: {err}") from err
    return cbor.head(3, len(data)) + data


def _data(value: Any) -> bytes:
    return _expect(value, bytes, "bytes")


def _truth(value: Any) -> bool:
    return _expect(value, bool, "true or false")


_TEXT: _Codec[str] = _Codec(_text, lambda v: _expect(v, str, "a text"), str, _encode_text)
_BYTES: _Codec[bytes] = _Codec(_data, _data, bytes, lambda v: cbor.head(2, len(_data(v))) + v)
_BOOL: _Codec[bool] = _Codec(_truth, _truth, bool, lambda v: b"\xf5" if _truth(v) else b"\xf4")


def _encode_any(value: Any) -> bytes:
    return value if type(value) is cbor.Encoded else cbor.encode(value)


_ANY: _Codec[Any] = _Codec(_identity, _identity, lambda: None, _encode_any)


def _encoded(value: Any) -> bytes:
    """Returns the bytes of a message, or those of one that is encoded already."""
    return value if type(value) is cbor.Encoded else value.encode()


def _list(item: _Codec[Any]) -> _Codec[list[Any]]:
    return _Codec(
        lambda value: [item.write(v) for v in value],
        lambda value: [item.read(v) for v in _expect(value, list, "an array")],
        list,
        lambda value: cbor.head(4, len(value)) + b"".join([item.encode(v) for v in value]),
    )


def _texts() -> _Codec[dict[str, str]]:
    def check(value: Any) -> dict[str, str]:
        return {_TEXT.read(k): _TEXT.read(v) for k, v in _expect(value, dict, "a map").items()}

    return _Codec(check, check, dict, lambda value: cbor.encode(check(value)))


def _nested(cls: type[Message], *, array: bool) -> _Codec[Any]:
    if array:  # written as an array of its fields, as a storage is

        def write(value: Message) -> list[Any]:
            return [field.codec.write(getattr(value, field.name)) for field in value.keyed_fields()]

        def read(value: Any) -> Message:
            items = _expect(value, list, "an array")
            if len(items) < len(cls.keyed_fields()):
                raise ValueError(f"an array of {len(items)} elements")
            return cls(**{field.name: field.codec.read(v) for field, v in zip(cls.keyed_fields(), items, strict=False)})

        return _Codec(write, read, lambda: cls.from_plain({}), lambda value: cbor.encode(write(value)))
    return _Codec(lambda value: value.plain(), cls.from_plain, lambda: cls.from_plain({}), _encoded)


def _optional(inner: _Codec[Any]) -> _Codec[Any]:
    return _Codec(inner.write, inner.read, lambda: None, inner.encode)


def _codec(hint: Any) -> _Codec[Any]:
    """Returns the codec for the annotation of a field."""
    origin = get_origin(hint)
    if origin is Annotated:
        base, rule = get_args(hint)
        return _fixed(rule) if base is bytes else _integer(*rule)
    if origin is list:
        return _list(_codec(get_args(hint)[0]))
    if origin is dict:
        return _texts()
    if origin is typing.Union or str(origin) == "<class 'types.UnionType'>":
        return _optional(_codec(next(a for a in get_args(hint) if a is not type(None))))
    if isinstance(hint, type) and issubclass(hint, Message):
        return _nested(hint, array=getattr(hint, "AS_ARRAY", False))
    known: dict[Any, _Codec[Any]] = {str: _TEXT, bytes: _BYTES, bool: _BOOL, Any: _ANY}
    return known[hint]
