"""Serves one copy of a model's weights with three vLLM engines on a CPU, and switches them to another version under
load.

    python check.py --owner PATH_OF_SHAREDTENSOR [--folder FOLDER]

It exits with status 1 if a check fails. The last lines are a table of what was measured.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROMPT, LENGTH = "w1 w5 w9 w20", 16

DTYPE = "float32"
"""In bfloat16 the rounding depends on the size of a batch, and so do the greedy tokens now and then."""


def say(text: str) -> None:
    print(f"--> {text}", flush=True)


class Failed(Exception):
    pass


def require(condition: bool, text: str) -> None:
    if not condition:
        raise Failed(text)
    say(f"ok: {text}")


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # by default all engines use the first core
        "TOKENIZERS_PARALLELISM": "false",
    }


def run(*command: str, log: Path) -> str:
    """Runs a program to its end and returns what it printed."""
    with log.open("w") as out:
        status = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment(), timeout=900
        ).returncode
    text = log.read_text()
    if status:
        raise Failed(f"{' '.join(command)} ended with status {status}:\n{text[-3000:]}")
    return text


def refused(model: Path, log: Path, *options: str) -> str:
    """Runs an engine that has to fail and returns the error's line."""
    try:
        reference(model, log, *options)
    except Failed:
        found = re.findall(r"^.*?(sharedtensor\.errors\.\w+: .*)$", log.read_text(), re.M)
        return found[-1] if found else ""
    raise Failed(f"an engine on the wrong weights started: {log}")


def reference(model: Path, log: Path, *options: str) -> dict[str, Any]:
    """Runs an engine in one process and returns its report."""
    text = run(sys.executable, str(HERE / "engine.py"), str(model), "--dtype", DTYPE, *options, log=log)
    found: dict[str, Any] = json.loads(re.findall(r"^RESULT (.*)$", text, re.M)[-1])
    return found


class Engine:
    """A vLLM server on the owner's weights."""

    def __init__(self, name: str, model: Path, owner: str, folder: Path) -> None:
        self.name, self.model, self.owner, self.folder = name, model, owner, folder
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log = self.folder / f"{self.name}-{self.starts}.log"
        self.begin = time.monotonic()
        extra = json.dumps({"model": "llm", "socket": self.owner})
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)),
                    *("--served-model-name", "llm", "--host", "127.0.0.1", "--port", str(self.port)),
                    *("--enforce-eager", "--max-model-len", "512", "--dtype", DTYPE, "--max-num-seqs", "4"),
                    *("--load-format", "sharedtensor", "--model-loader-extra-config", extra),
                    *("--weight-transfer-config", '{"backend": "sharedtensor"}', "--disable-uvicorn-access-log"),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )

    def wait(self, seconds: float = 600) -> float:
        """Waits until the engine answers and returns the seconds since its start."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Failed(
                    f"{self.name} ended with status {self.process.returncode}:\n{self.log.read_text()[-4000:]}"
                )
            try:
                if self.ask("GET", "/health", timeout=5)[0] == 200:
                    return time.monotonic() - self.begin
            except OSError:
                pass
            time.sleep(0.2)
        raise Failed(f"{self.name} did not answer within {seconds:.0f} s:\n{self.log.read_text()[-4000:]}")

    def attached(self) -> float:
        """Returns the seconds that making the model and attaching to the weights took."""
        return float(re.findall(r"of the owner's memory in ([0-9.]+) s", self.log.read_text())[-1])

    def ask(self, method: str, path: str, body: Any = None, timeout: float = 300) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(data) if data else None
        except ValueError:
            return answer.status, data.decode(errors="replace")

    def must(self, path: str, body: Any = None) -> Any:
        status, answer = self.ask("POST", path, body)
        if status != 200:
            raise Failed(f"{self.name} answered {path} with {status}: {answer}\n{self.log.read_text()[-3000:]}")
        return answer

    def complete(self) -> tuple[int, str]:
        """Sends the prompt and returns the status and the greedy completion."""
        body = {"model": "llm", "prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0, "ignore_eos": True}
        status, answer = self.ask("POST", "/v1/completions", body)
        return status, answer["choices"][0]["text"] if status == 200 else str(answer)

    def switch(self, version: int) -> float:
        """Switches the engine to a version and returns the seconds of the pause."""
        begin = time.monotonic()
        self.must("/pause?mode=wait")
        paused = time.monotonic()
        try:
            self.must("/start_weight_update", {})
            self.must("/update_weights", {"update_info": {"model": "llm", "version": version}})
            self.must("/finish_weight_update", {})
        finally:
            self.must("/resume")
        seconds = time.monotonic() - paused
        say(f"{self.name} waited {paused - begin:.3f} s for running requests and switched in {seconds:.3f} s")
        return seconds

    def weights(self) -> dict[str, int]:
        """Returns the KiB of the memory of weights in the process that has them: rss, pss, private."""
        best = {"rss": 0, "pss": 0, "private": 0}
        for pid in members(self.process.pid):
            found = {"rss": 0, "pss": 0, "private": 0}
            try:
                lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
            except OSError:
                continue
            ours = False
            for line in lines:
                if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                    ours = "/memfd:sharedtensor" in line
                elif ours:
                    field, _, rest = line.partition(":")
                    key = {"Rss": "rss", "Pss": "pss", "Private_Dirty": "private"}.get(field)
                    if key:
                        found[key] += int(rest.split()[0])
            if found["rss"] > best["rss"]:
                best = found
        return best

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def members(group: int) -> list[int]:
    """Returns the processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


class Load:
    """Requests to an engine, one after the other, from two threads."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: list[tuple[float, float, int, str]] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]
        for each in self._threads:
            each.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            try:
                status, text = self.engine.complete()
            except OSError as err:
                status, text = 0, str(err)
            self.answers.append((begin, time.monotonic(), status, text))

    def stop(self) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()


def start_owner(program: str, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    path = str(folder / "owner.sock")
    with (folder / "owner.log").open("w") as out:
        owner = subprocess.Popen([program, "serve", "--socket", path], stdout=out, stderr=subprocess.STDOUT)
    end = time.monotonic() + 30
    while not os.path.exists(path):
        if owner.poll() is not None or time.monotonic() > end:
            raise Failed(f"the owner did not start: {(folder / 'owner.log').read_text()}")
        time.sleep(0.05)
    return owner, path


def check(program: str, folder: Path, layers: int) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    first, second = folder / "first", folder / "second"
    say("two models with random weights")
    for seed, model in enumerate((first, second)):
        make = (sys.executable, str(HERE / "make_model.py"), str(model), "--layers", str(layers), "--seed", str(seed))
        print(run(*make, log=folder / f"make-{seed}.log").splitlines()[-1])
    say("vLLM's own loader")
    packed = reference(first, folder / "reference-1.log", "--speed")
    other = reference(second, folder / "reference-2.log")
    require(packed["tokens"] != other["tokens"], "the two models give different tokens")
    texts = [" ".join(f"w{i}" for i in each["tokens"][0]) for each in (packed, other)]

    owner, path = start_owner(program, folder)
    engines: list[Engine] = []
    try:
        seeding = ("-m", "sharedtensor", "--socket", path, "seed", "vllm", "--as", "llm", "--json")
        settings = ("--set", f"dtype={DTYPE}", "--set", "max_model_len=512")

        def seed(model: Path, number: int) -> dict[str, Any]:
            text = run(sys.executable, *seeding, *settings, str(model), log=folder / f"seed-{number}.log")
            found: dict[str, Any] = json.loads(text.splitlines()[-1])
            return found

        say("seed the first version")
        seeded = seed(first, 1)
        rows.append(("weights", f"{seeded['nbytes'] / 1e6:.0f} MB in {seeded['tensors']} tensors"))
        shared = reference(first, folder / "attached.log", "--attach", path, "llm", "--speed")
        require(
            shared["tokens"] == packed["tokens"], "an engine on shared weights gives the tokens of vLLM's own loader"
        )
        rows.append(("start of an engine, vLLM's own loader", f"{packed['start']} s"))
        rows.append(("start of an engine, shared in place", f"{shared['start']} s"))
        rows.append(("tokens per second, packed by vLLM", f"{packed['tokens_per_second']}"))
        rows.append(("tokens per second, shared in place", f"{shared['tokens_per_second']}"))

        error = refused(first, folder / "refused.log", "--attach", path, "llm", "--dtype", "bfloat16")
        require("published for another configuration: dtype is" in error, f"another data type is refused: {error}")

        say("two servers, then a third")
        engines = [Engine(f"engine-{i}", first, path, folder) for i in (1, 2)]
        for each in engines:
            rows.append((f"start of {each.name}", f"{each.wait():.1f} s, of which attaching {each.attached():.3f} s"))
            answer = each.complete()
            require(answer[1].strip() == texts[0], f"{each.name} gives the same text: {answer}")
        loads = [Load(each) for each in engines]
        try:
            third = Engine("engine-3", first, path, folder)
            engines.append(third)
            third.wait()
            third.complete()  # which touches all weights
            memory = [each.weights() for each in engines]
            for each, found in zip(engines, memory, strict=True):
                values = ", ".join(f"{key} {value / 1024:.0f} MiB" for key, value in found.items())
                rows.append((f"weights of {each.name}", values))
            total = sum(found["pss"] for found in memory) * 1024
            require(
                total <= 1.05 * seeded["nbytes"], f"three engines have one copy: PSS of {total / 1e6:.0f} MB in all"
            )
            require(max(found["private"] for found in memory) < 1024, "no engine has a private copy of weights")

            say("kill the third, seed the second version, start the third again")
            third.kill()
            version = seed(second, 2)["version"]
            third.start()
            pauses = [each.switch(version) for each in engines[:2]]
            third.wait()
            time.sleep(2)
        finally:
            for load in loads:
                load.stop()
        rows.append(("longest pause of a switch", f"{max(pauses):.3f} s"))
        rows.append(("start of engine-3 after SIGKILL, under load", f"attaching {third.attached():.3f} s"))
        answer = third.complete()
        require(answer[1].strip() == texts[1], f"the third engine starts on the second version: {answer}")
        for each, load in zip(engines, loads, strict=False):
            failed = [answer for answer in load.answers if answer[2] != 200]
            require(not failed, f"all {len(load.answers)} requests to {each.name} succeeded{failed[:1] or ''}")
            mixed = [answer[3] for answer in load.answers if answer[3].strip() not in texts]
            require(not mixed, f"each answer of {each.name} is one version's{mixed[:1] or ''}")
            kinds = [texts.index(answer[3].strip()) for answer in sorted(load.answers)]
            require(0 in kinds and 1 in kinds, f"{each.name} answered with both versions")
        again = [each.weights() for each in engines]
        total = sum(found["pss"] for found in again) * 1024
        require(
            total <= 1.05 * seeded["nbytes"], f"after the switch there is one copy: PSS of {total / 1e6:.0f} MB in all"
        )
    finally:
        for each in engines:
            each.kill()
        owner.terminate()
        owner.wait(30)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--owner", required=True, help="the program sharedtensor")
    parser.add_argument("--folder", type=Path, help="for models and logs; by default a new one, removed after success")
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="engines-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        rows = check(options.owner, folder, options.layers)
    except Failed as err:
        print(f"FAILED: {err}\nthe logs are in {folder}", file=sys.stderr)
        return 1
    print()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")
    if options.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
