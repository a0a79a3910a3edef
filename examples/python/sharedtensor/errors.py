"""The errors of the protocol as exception classes: one for each code, and one for each type that a program may
handle differently. Each is also an instance of the built-in class that torch or the standard library raises for the
same: ConnectionError, TimeoutError, PermissionError, TypeError, ValueError, LookupError, MemoryError, RuntimeError.

What a server answers is raised as the class of its code and type. An error that has further codes (the protocol's
`classes`) is an instance of their classes too, so that ``except`` finds it under each of them.
"""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """The base of all errors of this package and of the server.

    :ivar code: the protocol's number, 7 for what has none.
    :ivar type: the protocol's word, or what the sender's program calls the error; "" where there is none.
    :ivar data: what an endpoint sent along, else None.
    """

    code: int = 7
    type: str = ""
    data: Any = None

    def __init__(self, message: str, *, type: str = "", data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        if type:
            self.type = type
        self.data = data

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Any:  # with a class that was made at run time, and the cause, which pickles leave out
        cause = self.__cause__ if isinstance(self.__cause__, Error) else None
        return _rebuild, (_parts(type(self)), self.message, cause, dict(self.__dict__))


def _rebuild(classes: tuple[type[Error], ...], message: str, cause: Error | None, attributes: dict[str, Any]) -> Error:
    cls = combined(classes[0], list(classes[1:]))
    base: Any = cls
    while base.__module__ != "builtins":  # the class of the interpreter that the instance is built on
        base = base.__base__
    err: Error = base.__new__(cls, message)
    err.args = (message,)
    err.__dict__.update(attributes)
    err.__cause__ = cause
    return err


class ProtocolError(Error, RuntimeError):
    """The peer broke the protocol, or speaks another version of it."""

    code, type = 1, "protocol"


class ProviderError(Error):
    """No endpoint of that name is registered, or it is registered twice."""

    code = 2


class EndpointNotFoundError(ProviderError, LookupError):
    """The server has no endpoint of that name: `Client.endpoints` lists those it has."""

    type = "not registered"


class SerializationError(Error, TypeError):
    """A value cannot be written or read."""

    code, type = 3, "encoding"


class CapabilityError(Error, TypeError):
    """A payload cannot be shared in place: its memory, its device, its kind of handle or its data type."""

    code, type = 4, "capability"


class TaskError(Error, RuntimeError):
    """A task failed, was cancelled or is not known. `__cause__` is the reason if the server sent one."""

    code = 5


class TaskFailedError(TaskError):
    """The task's function returned an error, which is `__cause__`."""

    type = "failed"


class TaskCancelledError(TaskError):
    """The task was cancelled."""

    type = "cancelled"


class TaskNotFoundError(TaskError, LookupError):
    """No such task, or it ended too long ago to be remembered."""

    type = "not found"


class TaskNotCompleteError(TaskError):
    """The task has not ended yet."""

    type = "not complete"


class ConfigurationError(Error, RuntimeError):
    """A registration, an option or an environment makes no sense."""

    code, type = 6, "configuration"


class InternalError(Error, RuntimeError):
    """Anything else: what an endpoint's function returned, a panic of it."""

    code = 7


class StaleHandleError(Error, LookupError):
    """The object or its server is gone. `reason` is "object_missing" or "server_mismatch"."""

    code, type = 8, "stale"
    object: str = ""
    server: str = ""
    reason: str = ""
    detail: str = ""


class NotFoundError(Error, LookupError):
    """No such name, version, lease or request."""

    code, type = 16, "name"


class VersionNotFoundError(NotFoundError):
    """The name is published, but not in that version."""

    type = "version"


class AlreadyExistsError(Error, ValueError):
    """The name is taken."""

    code = 17


class InvalidArgumentError(Error, ValueError):
    """An argument is refused."""

    code, type = 18, "invalid"


class IncompatibleError(InvalidArgumentError, RuntimeError):
    """A state dict does not fit a module. torch raises a RuntimeError for that."""

    type = "incompatible"


class DigestError(InvalidArgumentError):
    """The bytes of a tensor or of a version do not have the expected digest."""

    type = "digest"


class PermissionDeniedError(Error, PermissionError):
    """This process may not do that."""

    code, type = 19, "permission"


class ReadOnlyError(PermissionDeniedError):
    """A write to memory that is read-only."""

    type = "read-only"


class ResourceExhaustedError(Error, RuntimeError):
    """A limit is reached."""

    code, type = 20, "limit"


class UnsupportedError(Error, NotImplementedError):
    """The server does not have this operation or feature."""

    code, type = 21, "unsupported"


class UnavailableError(Error, ConnectionError):
    """No server answers, or the server is stopping or starting."""

    code, type = 22, "unavailable"


class LeavingError(UnavailableError):
    """The server says goodbye. The request did not run: the client sends it to the next server, if there is one."""

    type = "leaving"


class WorkerGoneError(UnavailableError):
    """The worker ended before it answered the call. The function may have run; the server does not call it again."""

    type = "worker gone"


class CanceledError(Error):
    """The request was cancelled."""

    code, type = 23, "canceled"


class DeadlineExceededError(Error, TimeoutError):
    """The request's time ran out."""

    code, type = 24, "deadline exceeded"


class IncompleteVersionError(DeadlineExceededError):
    """Not all parts of a version were published in time, or its name was withdrawn before. No part is published."""

    type = "incomplete"


class OutOfMemoryError(Error, MemoryError):
    """The system refused the memory."""

    code, type = 25, "out of memory"


class ClosedError(Error, RuntimeError):
    """The thing was closed before."""

    code, type = 26, "closed"


class ConnectionLostError(ClosedError, ConnectionError):
    """The connection ended before the answer arrived. The server may have executed the request."""

    type = "connection closed"


class ApplicationError(Error, RuntimeError):
    """An error of the server program's own: `type` is that program's word, `data` what it sent along."""

    code = 27


class ForkError(ClosedError):
    """The client was made before this process was forked: connections do not cross a fork. Connect again in the
    child."""


def _classes() -> list[type[Error]]:
    found: list[type[Error]] = []
    rest: list[type[Error]] = list(Error.__subclasses__())
    while rest:
        cls = rest.pop()
        found.append(cls)
        rest.extend(cls.__subclasses__())
    return [cls for cls in found if cls not in (ForkError,)]


_BY_CODE: dict[int, type[Error]] = {}
_BY_TYPE: dict[tuple[int, str], type[Error]] = {}
for _cls in _classes():
    if Error in _cls.__bases__:
        _BY_CODE[_cls.code] = _cls
    if "type" in _cls.__dict__:
        _BY_TYPE[_cls.code, _cls.type] = _cls
_COMBINED: dict[tuple[type[Error], ...], type[Error]] = {}


def class_of(code: int, type: str = "") -> type[Error]:
    """Returns the class for a code and a type; a code that is not known is that of InternalError."""
    return _BY_TYPE.get((code, type)) or _BY_CODE.get(code, InternalError)


def _parts(cls: type[Error]) -> tuple[type[Error], ...]:
    """Returns the classes that `combined` made a class of; the class itself for others."""
    found = cls.__dict__.get("_combined")
    return found if found is not None else (cls,)


def combined(first: type[Error], others: list[type[Error]]) -> type[Error]:
    """Returns a class that is `first` and all of `others`, under the name of `first`."""
    extra = tuple(cls for cls in dict.fromkeys(others) if not issubclass(first, cls))
    if not extra:
        return first
    key = (first, *extra)
    if key not in _COMBINED:
        attributes = {"code": first.code, "type": first.type, "__module__": first.__module__, "_combined": key}
        try:
            made = type(first.__name__, key, attributes)
        except TypeError:  # no common order of bases: the first class decides
            made = first
        _COMBINED[key] = made
    return _COMBINED[key]
