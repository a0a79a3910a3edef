"""Versions that several publishers publish together, such as the ranks of an engine: each publishes one part, and all
parts become current in one step."""

from __future__ import annotations

from typing import TypeAlias

from . import messages
from .errors import InvalidArgumentError, UnsupportedError
from .session import Session

RankPart: TypeAlias = "int | tuple[int, int]"
"""A part of a version: (index, number of parts), with indexes from 0. A reader may give the index alone."""
FEATURE = "parts"
"""The feature of owners that have versions of several parts."""


def of_reader(part: RankPart, session: Session) -> messages.Part:
    """Returns the part that a reader requests. Raises InvalidArgumentError, and UnsupportedError for an owner without
    parts."""
    index, of = (part, 0) if isinstance(part, int) else part
    return _checked(index, of, "", session)


def of_publisher(part: tuple[int, int], key: str, session: Session) -> messages.Part:
    """Returns the part that a publisher sends. Raises as `of_reader`, because an owner without parts would publish it
    as a version."""
    if isinstance(part, int):
        raise InvalidArgumentError("a publisher names the part and the number of parts: part=(index, count)")
    index, of = part
    if of < 1:
        raise InvalidArgumentError(f"a version has at least one part, not {of}")
    return _checked(index, of, key, session)


def _checked(index: int, of: int, key: str, session: Session) -> messages.Part:
    if index < 0 or of < 0 or (of and index >= of):
        raise InvalidArgumentError(f"part {index} of {of}: parts count from 0")
    if FEATURE not in session.hello.features:
        raise UnsupportedError("this owner has no versions of several parts: it is of a version without them")
    return messages.Part(index=index, of=of, key=key)
