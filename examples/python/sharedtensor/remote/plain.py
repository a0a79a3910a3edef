"""Tokens are not sent in plaintext over a network."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigurationError

__all__ = ["check", "check_server", "check_servers"]


def check(address: str, token: str, encrypted: bool, insecure_token: bool) -> None:
    """Raises ConfigurationError if a token would go to another host without TLS.

    :param address: a URL, HOST:PORT or ``unix:PATH``.
    :param token: "" for none.
    :param encrypted: whether the connection has TLS.
    :param insecure_token: whether the caller accepts it.
    """
    if not token or encrypted or insecure_token or address.startswith(("unix:", "/")):
        return
    host = _host(address)
    if not _loopback(host):
        raise ConfigurationError(
            f"the token would go to {host or address} without encryption: use TLS, or insecure_token=True to send it"
        )


def check_servers(servers: str | list[str], options: dict[str, Any], insecure_token: bool) -> None:
    """Raises ConfigurationError if a token or password would go to a NATS server of another host without TLS."""
    for server in [servers] if isinstance(servers, str) else servers:
        for one in server.split(","):
            url = one.strip() if "://" in one else f"nats://{one.strip()}"
            encrypted = urlsplit(url).scheme in ("tls", "wss") or options.get("tls") is not None
            check_server(url, options, encrypted, insecure_token)


def check_server(url: str, options: dict[str, Any], encrypted: bool, insecure_token: bool) -> None:
    """Raises ConfigurationError if a token or password would go to this NATS server of another host without TLS."""
    secret = options.get("token") or options.get("password") or urlsplit(url).username
    check(url, "given" if secret else "", encrypted, insecure_token)


def _host(address: str) -> str:
    if address.startswith("dns:"):  # dns:HOST:PORT or dns://SERVER/HOST:PORT
        address = address.removeprefix("dns:")
        if address.startswith("//"):
            address = address[2:].partition("/")[2]
    try:
        return urlsplit(address if "://" in address else f"//{address.lstrip('/')}").hostname or ""
    except ValueError:
        return ""  # the connection reports wrong addresses


def _loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
