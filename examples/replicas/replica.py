"""Serves HTTP with torch on a model that an owner holds, in place: Silero VAD, or square matrices.

    python replica.py --listen SOCKET [--owner SOCKET] [--device cuda:0] [--private] NAME

It needs torch, numpy, cbor2 and the package of examples/python. With --private it uses a copy, for comparison.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import socketserver
import struct
import sys
import threading
import wave
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

import torch
from torch.nn import functional as F

import sharedtensor as st

CHUNK, CONTEXT = 512, 64
Weights = Mapping[str, torch.Tensor]


def probabilities(w: Weights, samples: torch.Tensor) -> list[float]:
    """Returns the probability of speech in each chunk of a clip at 16 kHz."""
    samples = F.pad(samples, (CONTEXT, -len(samples) % CHUNK))
    windows = samples.unfold(0, CONTEXT + CHUNK, CHUNK).unsqueeze(1)  # chunks × 1 × 576
    spectrum = F.conv1d(F.pad(windows, (0, CONTEXT), mode="reflect"), w["stft_conv.weight"], stride=128)
    half = spectrum.shape[1] // 2
    x = torch.sqrt(spectrum[:, :half] ** 2 + spectrum[:, half:] ** 2)
    for layer, stride in enumerate((1, 2, 2, 1), 1):
        x = F.relu(F.conv1d(x, w[f"conv{layer}.weight"], w[f"conv{layer}.bias"], stride=stride, padding=1))
    h = c = torch.zeros(1, 128, device=x.device)
    cell = [w[f"lstm_cell.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    found = []
    for step in x[:, :, 0]:  # the state passes from chunk to chunk
        h, c = torch.lstm_cell(step[None], (h, c), *cell)
        found.append(h)
    y = F.conv1d(F.relu(torch.cat(found))[:, :, None], w["final_conv.weight"], w["final_conv.bias"])
    return list(torch.sigmoid(y).flatten().tolist())


def forward(w: Weights, x: torch.Tensor) -> list[float]:
    """Returns the product of a vector, padded with zeros, with one matrix after another."""
    x = F.pad(x, (0, len(next(iter(w.values()))) - len(x)))
    for weight in w.values():
        x = weight @ x
    return list(x.tolist())


def decode(body: bytes) -> torch.Tensor:
    """Returns the samples of a WAV file as numbers from -1 to 1."""
    with wave.open(io.BytesIO(body)) as clip:
        if (clip.getframerate(), clip.getsampwidth(), clip.getnchannels()) != (16000, 2, 1):
            raise ValueError("the clip has to be WAV: 16 kHz, 16 bit, mono")
        frames = clip.readframes(clip.getnframes())
    return torch.tensor(struct.unpack(f"<{len(frames) // 2}h", frames), dtype=torch.float32) / 32768


class Latest:
    """The newest version of a model. The last one stays in use while there is no owner."""

    def __init__(self, follower: Any) -> None:
        self._follower = follower
        self._lock = threading.Lock()
        self._model = follower.current  # waits for the first version

    def __call__(self) -> tuple[int, Weights]:
        with self._lock:
            if self._follower.ready():
                with contextlib.suppress(st.Error):  # the owner has ended meanwhile
                    self._model = self._follower.wait_newer(timeout=1)
            return self._model.version, self._model


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """An HTTP server on a Unix socket, with a thread for each connection."""

    daemon_threads = True
    request_queue_size = 128


def handler(current: Callable[[], tuple[int, Weights]], device: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def reply(self, status: int, answer: Any) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.reply(200 if self.path == "/health" else 404, {})

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            known = self.path in ("/vad", "/forward")
            if not known or not 0 <= size <= 1 << 20:
                self.close_connection = True
                self.reply(413 if known else 404, {})
                return
            version, weights = current()
            infer = probabilities if "stft_conv.weight" in weights else forward
            try:
                body = self.rfile.read(size)
                x = decode(body) if infer is probabilities else torch.tensor(json.loads(body), dtype=torch.float32)
                with torch.inference_mode():
                    result = infer(weights, x.to(device))
            except (ValueError, TypeError, RuntimeError, EOFError, wave.Error, struct.error) as error:
                self.reply(400, {"error": str(error)})
                return
            self.reply(200, {"result": result, "version": version, "pid": os.getpid()})

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def address_string(self) -> str:
            return "front"

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--listen", required=True, help="Unix socket to serve")
    parser.add_argument("--owner", help="socket of the owner (default: the usual one)")
    parser.add_argument("--device", default="cpu", help="cpu, or the device of the owner, such as cuda:0")
    parser.add_argument("--private", action="store_true", help="use a private copy of the first version")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the replicas share the processors
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(st.connect(options.owner, framework="torch", wait=600))
        follower = stack.enter_context(client.follow(options.model))
        current: Callable[[], tuple[int, Weights]] = Latest(follower)
        if options.private:
            own = {name: t.to(options.device, copy=True) for name, t in current()[1].items()}
            current = lambda: (0, own)  # noqa: E731
            stack.close()  # the owner's memory is unmapped
        with contextlib.suppress(FileNotFoundError):
            os.unlink(options.listen)  # of a process that was killed
        Server(options.listen, handler(current, options.device)).serve_forever()


if __name__ == "__main__":
    main()
