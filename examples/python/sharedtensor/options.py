"""Calls with settings that are apart from the fields of the function, so that fields may have any name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .calls import NOTHING, Object, Stream, argument, object_of
from .errors import SerializationError

if TYPE_CHECKING:
    from .client import Client
    from .tasks import Task

R = TypeVar("R")


class Settings(Generic[R]):
    """A client, and settings for its calls."""

    def __init__(
        self,
        client: Any,
        timeout: float | None,
        framework: str | None,
        writable: bool,
        returns: type[R] | None,
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._framework = framework
        self._writable = writable
        self._returns = returns


class Options(Settings[R]):
    """The calls of a client with the settings of `Client.options`. All keywords are fields of the function."""

    _client: Client[Any]

    def call(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> R:
        """Calls a function, as `Client.call` does. Raises SerializationError if the result is not of the type that
        `returns` names."""
        made, _ = self._client._call(endpoint, argument(value, fields), self._timeout, self._writable, self._framework)
        return checked(made, self._returns, endpoint)

    def call_object(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> Object:
        """Calls a function whose results are managed, as `Client.call_object` does."""
        found = self._client._call(endpoint, argument(value, fields), self._timeout, False, self._framework)
        return object_of(endpoint, found)

    def stream(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> Stream[R]:
        """Calls a function that yields results, as `Client.stream` does. The timeout is that of the whole stream."""
        return self._client._stream(endpoint, argument(value, fields), self._timeout, self._framework, self._returns)

    def submit(self, endpoint: str, value: Any = NOTHING, /, **fields: Any) -> Task:
        """Starts a call as a task, as `Client.submit` does. The timeout is that of the request, not of the task."""
        return self._client._submit(endpoint, argument(value, fields), self._timeout)


def checked(value: Any, returns: type[R] | None, endpoint: str) -> R:
    """Returns a result if it has the type that the program expects. Raises SerializationError otherwise."""
    if returns is not None and not isinstance(value, returns):
        raise SerializationError(
            f"{endpoint} returned a {type(value).__name__}, the program expects {returns.__name__}"
        )
    result: R = value
    return result
