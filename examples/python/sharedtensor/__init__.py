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
from .dlpack import to_dlpack
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
    DigestError,
    EndpointNotFoundError,
    Error,
    ForkError,
    IncompatibleError,
    IncompleteVersionError,
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
from .making import (
    empty,
    empty_like,
    from_array,
    full,
    full_like,
    is_shared,
    ones,
    ones_like,
    state_dict,
    zeros,
    zeros_like,
)
from .manifest import TensorSpec
from .models import Model, StateDict, TensorSlice
from .options import Options
from .paths import socket_path
from .stats import ClientStats
from .tasks import Task, TaskInfo
from .torch_modules import load_into, share_module, swap
from .waiting import NO_LIMIT
from .watching import Event, Follower, Watch
from .workers import Call, Function, Offer, current_call
from .writer import VersionWriter

__version__ = "0.1.0"

__all__ = [
    "AlreadyExistsError",
    "ApplicationError",
    "Call",
    "CanceledError",
    "CapabilityError",
    "Client",
    "ClientStats",
    "ClosedError",
    "ConfigurationError",
    "ConnectionLostError",
    "DType",
    "DeadlineExceededError",
    "DigestError",
    "EndpointNotFoundError",
    "Error",
    "Event",
    "Follower",
    "ForkError",
    "Function",
    "IncompatibleError",
    "IncompleteVersionError",
    "InternalError",
    "InvalidArgumentError",
    "Model",
    "NotFoundError",
    "NO_LIMIT",
    "Object",
    "Offer",
    "Options",
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
    "TensorSlice",
    "TensorSpec",
    "UnavailableError",
    "UnsupportedError",
    "VersionNotFoundError",
    "VersionWriter",
    "Watch",
    "WorkerGoneError",
    "aio",
    "connect",
    "current_call",
    "empty",
    "empty_like",
    "errors",
    "from_array",
    "full",
    "full_like",
    "is_shared",
    "load_into",
    "ones",
    "ones_like",
    "share_module",
    "socket_path",
    "state_dict",
    "swap",
    "to_dlpack",
    "zeros",
    "zeros_like",
]
