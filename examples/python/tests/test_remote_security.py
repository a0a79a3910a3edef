"""Clients of a gateway with TLS and tokens: all protocols, and what they refuse."""

from __future__ import annotations

import asyncio
import importlib
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Gateway

import sharedtensor as st
from sharedtensor.remote import jsonrpc, plain

TOKEN = "token-of-the-trainer-0123456789"
WRONG = "token-that-is-unknown-987654321"


def openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str) -> Path:
    """Makes a certificate authority and returns its certificate."""
    openssl(
        folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem",
    )  # fmt: skip
    return folder / f"{name}.pem"


def certificate(folder: Path, ca: str, name: str, usage: str) -> None:
    """Makes a certificate of an authority for a server on this host or for a client."""
    (folder / f"{name}.ext").write_text(f"subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage={usage}\n")
    openssl(
        folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr",
    )  # fmt: skip
    openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial",
        "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem",
    )  # fmt: skip


@dataclass
class Secured:
    """A gateway with TLS, which accepts a token or a client certificate."""

    gateway: Gateway
    folder: Path

    @property
    def https(self) -> str:
        return self.gateway.http.replace("http://", "https://")

    def context(self, ca: str = "ca", client: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.folder / f"{ca}.pem"))
        if client:
            context.load_cert_chain(self.folder / f"{client}.pem", self.folder / f"{client}.key")
        return context

    def credentials(self, ca: str = "ca", client: str = "") -> Any:
        grpc = pytest.importorskip("grpc")
        roots = (self.folder / f"{ca}.pem").read_bytes()
        if not client:
            return grpc.ssl_channel_credentials(roots)
        key, chain = ((self.folder / f"{client}{end}").read_bytes() for end in (".key", ".pem"))
        return grpc.ssl_channel_credentials(roots, key, chain)


@pytest.fixture(scope="module")
def secured(programs: Path) -> Iterator[Secured]:
    if not (programs / "sharedtensor-gateway").exists():
        pytest.skip("sharedtensor-gateway is not among the programs: .ci/remote builds it")
    with tempfile.TemporaryDirectory(prefix="st") as name:
        folder = Path(name)
        authority(folder, "ca")
        authority(folder, "other")
        certificate(folder, "ca", "server", "serverAuth")
        certificate(folder, "ca", "worker", "clientAuth")
        certificate(folder, "other", "stranger", "clientAuth")
        (folder / "tokens").write_text(f"{TOKEN} trainer\n")
        flags = {
            "--tls-cert": "server.pem",
            "--tls-key": "server.key",
            "--token-file": "tokens",
            "--client-ca": "ca.pem",
        }
        started = Gateway(programs, folder, *(part for f, v in flags.items() for part in (f, str(folder / v))))
        yield Secured(started, folder)
        started.stop()


def over_jsonrpc(s: Secured, token: str, ca: str, client: str) -> None:
    with jsonrpc.Client(s.https, token=token, context=s.context(ca, client), timeout=20) as c:
        c.request("list_models")


def over_stream(s: Secured, token: str, ca: str, client: str) -> None:
    stream = pytest.importorskip("sharedtensor.remote.stream")
    with stream.Client(
        s.gateway.grpc, token=token, credentials=s.credentials(ca, client), framework="numpy", attempts=1
    ) as c:
        assert c.put("streamed", {"x": np.arange(3.0)}) >= 1


def over_compute(s: Secured, token: str, ca: str, client: str) -> None:
    compute = pytest.importorskip("sharedtensor.remote.compute")
    c = compute.GRPCComputeClient(
        s.gateway.grpc, 20.0, retry_strategy=compute.FixedDelay(1), token=token, credentials=s.credentials(ca, client)
    )
    c.connect()
    try:
        if c.get_service_info() is None:  # no error is raised
            c.compute(np.ones(2, np.float32), "nothing")
            raise AssertionError("a function that does not exist returned")
    finally:
        c.close()


def over_nats(s: Secured, token: str, ca: str, client: str) -> None:
    pytest.importorskip("nats")
    from sharedtensor.remote.bins import Store

    async def main() -> None:
        options = {"tls": s.context(ca, client), "allow_reconnect": False, "connect_timeout": 10}
        if token:
            options["token"] = token
        async with await Store.open(s.gateway.nats, namespace="secured", framework="numpy", **options) as store:
            await store.put("bin", {"n": 1})

    asyncio.run(main())


CLIENTS: list[Callable[[Secured, str, str, str], None]] = [over_jsonrpc, over_stream, over_compute, over_nats]
everywhere = pytest.mark.parametrize("over", CLIENTS, ids=[f.__name__ for f in CLIENTS])


@everywhere
def test_a_token_over_tls_is_admitted(secured: Secured, over: Callable[..., None]) -> None:
    over(secured, TOKEN, "ca", "")


@everywhere
def test_a_client_certificate_is_admitted(secured: Secured, over: Callable[..., None]) -> None:
    over(secured, "", "ca", "worker")


@everywhere
@pytest.mark.parametrize("token", ["", WRONG], ids=["none", "wrong"])
def test_another_token_is_refused(secured: Secured, over: Callable[..., None], token: str) -> None:
    with pytest.raises(Exception) as caught:
        over(secured, token, "ca", "")
    assert is_refusal(caught.value), repr(caught.value)
    assert WRONG not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"


@everywhere
def test_a_certificate_of_another_authority_is_refused(secured: Secured, over: Callable[..., None]) -> None:
    with pytest.raises(Exception) as caught:
        over(secured, "", "ca", "stranger")
    assert not isinstance(caught.value, AssertionError)


@everywhere
def test_a_server_of_another_authority_receives_no_token(secured: Secured, over: Callable[..., None]) -> None:
    with pytest.raises(Exception) as caught:
        over(secured, TOKEN, "other", "")
    assert isinstance(caught.value, (st.UnavailableError, OSError)) or "SSL" in repr(caught.value), repr(caught.value)
    assert TOKEN not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"


def is_refusal(err: BaseException) -> bool:
    return isinstance(err, st.PermissionDeniedError) or "uthoriz" in repr(err) or "UNAUTHENTICATED" in repr(err)


def test_clients_do_not_show_their_tokens(secured: Secured) -> None:
    clients: list[Any] = [jsonrpc.Client(secured.https, token=TOKEN, context=secured.context())]
    stream = pytest.importorskip("sharedtensor.remote.stream")
    clients.append(stream.Client(secured.gateway.grpc, token=TOKEN, credentials=secured.credentials()))
    for client in clients:
        assert TOKEN not in repr(client) and TOKEN not in str(client)
        client.close()


@pytest.mark.parametrize(
    ("address", "encrypted", "token", "refused"),
    [
        ("gpu7:1", False, "t", True),
        ("http://gpu7:1", False, "t", True),
        ("http://10.0.0.7:1", False, "t", True),
        ("http://127.0.0.1.gpu7:1", False, "t", True),
        ("dns:///gpu7:1", False, "t", True),
        ("dns://127.0.0.1/gpu7:1", False, "t", True),
        ("dns:gpu7:1", False, "t", True),
        ("dns:///localhost:1", False, "t", False),
        ("gpu7:1", False, "", False),
        ("gpu7:1", True, "t", False),
        ("http://127.0.0.1:1", False, "t", False),
        ("http://[::1]:1", False, "t", False),
        ("localhost:1", False, "t", False),
        ("unix:/run/gateway.sock", False, "t", False),
    ],
)
def test_tokens_are_not_sent_in_plaintext(address: str, encrypted: bool, token: str, refused: bool) -> None:
    for accepted in (False, True):
        if refused and not accepted:
            with pytest.raises(st.errors.ConfigurationError, match="without encryption"):
                plain.check(address, token, encrypted, accepted)
        else:
            plain.check(address, token, encrypted, accepted)


def test_a_client_of_http_refuses_to_send_a_token_in_plaintext() -> None:
    with pytest.raises(st.errors.ConfigurationError, match="without encryption"):
        jsonrpc.Client("http://gpu7:1", token=TOKEN)
    jsonrpc.Client("http://gpu7:1", token=TOKEN, insecure_token=True)


@pytest.mark.parametrize(("module", "name"), [("compute", "GRPCComputeClient"), ("stream", "Client")])
def test_clients_of_grpc_refuse_to_send_a_token_in_plaintext(module: str, name: str) -> None:
    pytest.importorskip("grpc")
    client = getattr(importlib.import_module(f"sharedtensor.remote.{module}"), name)
    with pytest.raises(st.errors.ConfigurationError, match="without encryption"):
        client("gpu7:1", token=TOKEN)


def test_clients_of_nats_refuse_to_send_a_token_in_plaintext() -> None:
    pytest.importorskip("nats")
    natslink = importlib.import_module("sharedtensor.remote.natslink")
    for server, options in (
        ("nats://gpu7:1", {"token": TOKEN}),
        ("nats://token@gpu7:1", {}),
        (["nats://127.0.0.1:1", "gpu7:1"], {"token": TOKEN}),
        ("nats://gpu7:1", {"user": "u", "password": "p"}),
    ):
        with pytest.raises(st.errors.ConfigurationError, match="without encryption"):
            asyncio.run(natslink.connect(server, **options))


@pytest.mark.parametrize("insecure", [False, True])
def test_a_client_of_nats_sends_no_token_to_a_server_that_lacks_tls(
    monkeypatch: pytest.MonkeyPatch, insecure: bool
) -> None:
    pytest.importorskip("nats")
    natslink = importlib.import_module("sharedtensor.remote.natslink")
    monkeypatch.setattr(plain, "_loopback", lambda host: False)  # the server stands for one of another host
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","proto":1,"max_payload":1024,"headers":true}\r\n')
        received.append(await reader.readline())
        writer.write(b"PONG\r\n")
        await reader.read()
        writer.close()

    async def connect() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            for options in ({"token": TOKEN}, {"user": "u", "password": TOKEN}):
                url = f"tls://127.0.0.1:{port}"
                given = {"wait": 1, "insecure_token": insecure, "allow_reconnect": False, **options}
                if insecure:
                    await (await natslink.connect(url, **given)).close()
                else:
                    with pytest.raises(st.errors.ConfigurationError, match="without encryption"):
                        await natslink.connect(url, **given)

    asyncio.run(asyncio.wait_for(connect(), 30))
    assert (TOKEN.encode() in b"".join(received)) == insecure
