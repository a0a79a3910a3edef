"""Errors on the wire and as exceptions."""

from __future__ import annotations

from typing import Any

from . import messages
from .errors import ApplicationError, Error, InternalError, ProtocolError, StaleHandleError, class_of, combined

MAX_CAUSES = 3


def exception_of(sent: messages.ErrorMessage, depth: int = 0) -> Error:
    """Returns the exception for an error that a server sent. Its cause, if the server sent one, is `__cause__`."""
    if sent.code == ApplicationError.code:
        return _application(sent)
    details = _details(sent.data)
    cls = class_of(sent.code, sent.type)
    if details is not None:
        cls = combined(cls, [class_of(c.code, c.type) for c in details.classes])
    err = cls(_text(sent), type=sent.type, data=sent.data if details is None else None)
    if cls.code != sent.code and cls.code != 7:
        err.code = sent.code
    if details is None:
        return err
    if isinstance(err, StaleHandleError):
        err.object, err.server, err.reason, err.detail = details.object, details.server, details.reason, details.detail
    if details.cause is not None and depth < MAX_CAUSES:
        err.__cause__ = exception_of(details.cause, depth + 1)
    return err


_SENTENCES = {
    "context deadline exceeded": "the time of the request is over",
    "context canceled": "the request was cancelled",
    "file already closed": "closed already",
    "use of closed network connection": "the connection is closed",
}
"""Sentences of Go's library, and what they mean to a program in Python."""


def _text(sent: messages.ErrorMessage) -> str:
    """Returns the message of an error. What a function returned as its own error (code 7) stays as it is."""
    text = sent.message
    if sent.code != InternalError.code:
        for theirs, ours in _SENTENCES.items():
            text = text.replace(theirs, ours)
    return text


def _application(sent: messages.ErrorMessage) -> Error:
    """Reads an error of the program's own. Its data is a map of a message and the program's data."""
    data = sent.data if isinstance(sent.data, dict) else {}
    message = data.get(1)
    return ApplicationError(message if isinstance(message, str) else sent.message, type=sent.type, data=data.get(2))


def _details(data: Any) -> messages.ErrorDetails | None:
    """Reads the data of an error if it is the protocol's own, a map with integer keys; other data is the endpoint's."""
    if not isinstance(data, dict) or not data or not all(isinstance(key, int) for key in data):
        return None
    try:
        return messages.ErrorDetails.from_plain(data)
    except ProtocolError:
        return None
