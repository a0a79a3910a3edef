"""Pickles of clients, models and tasks. They are references: the process that unpickles one connects to the owner."""

from __future__ import annotations

import sys
import threading
from typing import Any

from . import forks
from .client import Client, connect
from .errors import StaleHandleError
from .frameworks import Framework, choose
from .models import Model
from .tasks import Task

_clients: dict[tuple[str, int | None], Client] = {}
_lock = threading.Lock()
forks.track(sys.modules[__name__], _lock=threading.Lock, forked=lambda _: _clients.clear())


def shared_client(path: str, uid: int | None) -> Client:
    """Returns the client that this process uses for all pickles of an owner. It stays connected."""
    with _lock:
        client = _clients.get((path, uid))
        if client is None or client._closed:
            client = _clients[path, uid] = connect(path, uid=uid)
    return client


def attach(
    path: str,
    uid: int | None,
    server: str,
    name: str,
    version: int,
    framework: Framework,
    tensors: list[str] | None = None,
    placement: bytes = b"",
    part: tuple[int, int] | None = None,
) -> Model[Any]:
    """Acquires the model that a pickle refers to, on the same device. Raises VersionNotFoundError if the owner has
    freed the version, and StaleHandleError if the owner was replaced by another."""
    client = shared_client(path, uid)
    if client._session().published != server:
        raise StaleHandleError(f"the owner that had {name!r} version {version} is gone: acquire it anew")
    return client._acquire(name, version, choose(framework), tensors, placement or None, part)


def task(path: str, uid: int | None, id: str) -> Task:
    """Returns the task that a pickle refers to. Raises TaskNotFoundError."""
    return shared_client(path, uid).task(id)


def client(
    path: str, framework: str | None, timeout: float | None, reconnect: float, uid: int | None, keep: int
) -> Client:
    """Connects with the options of the client that was pickled."""
    how: Any = framework
    return connect(path, framework=how, timeout=timeout, reconnect=reconnect, uid=uid, keep=keep)
