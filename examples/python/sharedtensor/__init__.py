"""Tensors that another process owns, used in place.

>>> import sharedtensor as st
>>> with st.connect() as c:
...     w = c.acquire("llm")               # name -> tensor, the owner's bytes
...     y = c.call("transform", x=t, scale=2.0)

An owner is started by ``sharedtensor serve NAME=FILE``. See README.md for the rest.
"""

from . import aio, errors
from .calls import Object, Stream
from .client import Client, connect
from .dtypes import DType
from .errors import (
    AlreadyExistsError,
    ApplicationError,
    CanceledError,
    CapabilityError,
    ClosedError,
    ConfigurationError,
    ConnectionLostError,
    DeadlineExceededError,
    EndpointNotFoundError,
    Error,
    ForkError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfMemoryError,
    PermissionDeniedError,
    ProtocolError,
    ProviderError,
    ReadOnlyError,
    ResourceExhaustedError,
    SerializationError,
    StaleHandleError,
    TaskCancelledError,
    TaskError,
    TaskFailedError,
    TaskNotCompleteError,
    TaskNotFoundError,
    UnavailableError,
    UnsupportedError,
    VersionNotFoundError,
    WorkerGoneError,
)
from .making import empty, from_array, state_dict, zeros
from .manifest import TensorSpec
from .models import Model, StateDict
from .paths import socket_path
from .tasks import Task, TaskInfo
from .torch_modules import load_into, share_module
from .watching import Event, Follower, Watch
from .workers import Call, Function, Offer, current_call

__version__ = "0.1.0"

__all__ = [
    "AlreadyExistsError",
    "ApplicationError",
    "Call",
    "CanceledError",
    "CapabilityError",
    "Client",
    "ClosedError",
    "ConfigurationError",
    "ConnectionLostError",
    "DType",
    "DeadlineExceededError",
    "EndpointNotFoundError",
    "Error",
    "Event",
    "Follower",
    "ForkError",
    "Function",
    "InternalError",
    "InvalidArgumentError",
    "Model",
    "NotFoundError",
    "Object",
    "Offer",
    "OutOfMemoryError",
    "PermissionDeniedError",
    "ProtocolError",
    "ProviderError",
    "ReadOnlyError",
    "ResourceExhaustedError",
    "SerializationError",
    "StaleHandleError",
    "StateDict",
    "Stream",
    "Task",
    "TaskCancelledError",
    "TaskError",
    "TaskFailedError",
    "TaskInfo",
    "TaskNotCompleteError",
    "TaskNotFoundError",
    "TensorSpec",
    "UnavailableError",
    "UnsupportedError",
    "VersionNotFoundError",
    "Watch",
    "WorkerGoneError",
    "aio",
    "connect",
    "current_call",
    "empty",
    "errors",
    "from_array",
    "load_into",
    "share_module",
    "socket_path",
    "state_dict",
    "zeros",
]
