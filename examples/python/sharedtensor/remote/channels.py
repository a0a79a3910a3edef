"""gRPC channels to a gateway."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigurationError

try:
    import grpc
except ImportError as err:
    raise ConfigurationError(f"grpcio is not installed here ({err}): install sharedtensor[remote-grpc]") from None

__all__ = ["channel", "grpc", "metadata", "options"]

Metadata = tuple[tuple[str, str], ...]


def options(max_message: int) -> list[tuple[str, int]]:
    """Returns the options of a channel: the limit of messages in bytes, and keepalive."""
    return [
        ("grpc.max_send_message_length", max_message),
        ("grpc.max_receive_message_length", max_message),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


def channel(address: str, credentials: Any, max_message: int) -> Any:
    """Returns a channel: with TLS if there are credentials, from `grpc.ssl_channel_credentials`."""
    if credentials is None:
        return grpc.insecure_channel(address, options(max_message))
    return grpc.secure_channel(address, credentials, options(max_message))


def metadata(token: str) -> Metadata:
    """Returns the metadata of a call with a token, "" for none."""
    return (("authorization", f"Bearer {token}"),) if token else ()
