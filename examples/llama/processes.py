"""Starts llama.cpp in several processes on one model and measures memory and start: from the file, from a copy, and from
memory that an owner holds.

    pip install ../python xllamacpp gguf numpy
    python processes.py [--workers 4] [--type Q8_0] [--no-repack] [MODEL.gguf]

xllamacpp contains llama.cpp. Without MODEL.gguf, the program makes a Llama with random weights, of 165 MB with Q8_0. It needs Linux and
Go, and builds the command sharedtensor for the owner.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def make_model(path: str, kind: str, layers: int = 12, width: int = 1024, feed_forward: int = 2816, heads: int = 8) -> None:
    """Writes a Llama with random weights of a type and a vocabulary of bytes."""
    import gguf
    import numpy as np

    quantised = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", *(chr(97 + i) for i in range(26))]
    types = [2, 3, 3, *[6] * 256, *[1] * 27]
    vocabulary = 512
    types += [5] * (vocabulary - len(tokens))
    tokens += [f"<unused{i}>" for i in range(vocabulary - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * vocabulary)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    random = np.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
            return
        values = (random.random(shape, dtype=np.float32) - 0.5) * (2 / np.sqrt(shape[-1]))
        writer.add_tensor(name, gguf.quants.quantize(values, quantised), raw_dtype=quantised)

    add("token_embd.weight", vocabulary, width)
    for i in range(layers):
        add(f"blk.{i}.attn_norm.weight", width)
        for part in ("q", "k", "v", "output"):
            add(f"blk.{i}.attn_{part}.weight", width, width)
        add(f"blk.{i}.ffn_norm.weight", width)
        add(f"blk.{i}.ffn_gate.weight", feed_forward, width)
        add(f"blk.{i}.ffn_up.weight", feed_forward, width)
        add(f"blk.{i}.ffn_down.weight", width, feed_forward)
    add("output_norm.weight", width)
    add("output.weight", vocabulary, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def memory() -> dict[str, int]:
    """Returns the proportional set size of this process in MB, by kind."""
    kinds = {"Pss:": "all", "Pss_Anon:": "private", "Pss_File:": "files", "Pss_Shmem:": "shared memory"}
    found = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        fields = line.split()
        if fields[0] in kinds:
            found[kinds[fields[0]]] = int(fields[1]) * 1024 // 1_000_000
    return found


def work(mode: str, source: str) -> None:
    """Loads the model, answers one request, and reports. It ends with its standard input."""
    import sharedtensor as st  # in each mode, so that the memory of modules is equal
    import xllamacpp

    begin = time.monotonic()
    path = source
    if mode == "shared":
        client = st.connect(source, framework="numpy")
        model = client.acquire("m")
        path = model.file()
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 128
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.fit_params = False
    modes = xllamacpp.llama_load_mode
    params.no_extra_bufts = "NO_REPACK" in os.environ
    params.load_mode = modes.LLAMA_LOAD_MODE_NONE if mode == "copy" else modes.LLAMA_LOAD_MODE_MMAP
    server = xllamacpp.Server(params)
    loaded = time.monotonic() - begin
    answer = server.handle_completions({"prompt": "shared tensors", "max_tokens": 8, "temperature": 0.0, "seed": 1})
    print(json.dumps({"loaded": loaded, "first": time.monotonic() - begin, "text": answer["choices"][0]["text"]}), flush=True)
    sys.stdin.readline()
    print(json.dumps(memory()), flush=True)
    sys.stdin.readline()
    os._exit(0)  # llama.cpp's threads need not be joined


def start(mode: str, source: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, "--work", mode, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)


def report(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """Returns the next report of a worker."""
    assert worker.stdout
    for line in worker.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise RuntimeError(f"a worker ended with status {worker.wait()}")


def proceed(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin
    worker.stdin.write("\n")
    worker.stdin.flush()


def measure(name: str, mode: str, source: str, workers: int) -> str:
    """Starts workers one after another, prints a row, and returns their answer."""
    running, reports = [], []
    for _ in range(workers):
        running.append(start(mode, source))
        reports.append(report(running[-1]))
    sizes = []
    for worker in running:
        proceed(worker)
        sizes.append(report(worker))
    for worker in running:
        proceed(worker)
        worker.wait()
    assert len({r["text"] for r in reports}) == 1, "the workers differ"
    total = {kind: sum(s[kind] for s in sizes) for kind in sizes[0]}
    print(f"| {name} | {total['all']} MB | {total['private']} MB | {total['files']} MB | {total['shared memory']} MB "
          f"| {1000 * statistics.median(r['loaded'] for r in reports):.0f} ms "
          f"| {1000 * statistics.median(r['first'] for r in reports):.0f} ms |", flush=True)
    return str(reports[0]["text"])


def evict(path: str) -> None:
    """Removes the file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--type", default="Q8_0", help="type of the weights, such as Q4_0")
    parser.add_argument("--no-repack", action="store_true", help="keep the layout of the file, also if the processor has a faster one")
    parser.add_argument("--work", nargs=2, metavar=("MODE", "SOURCE"), help=argparse.SUPPRESS)
    parser.add_argument("model", nargs="?")
    options = parser.parse_args()
    if options.work:
        work(*options.work)
        return
    if options.no_repack:
        os.environ["NO_REPACK"] = "1"  # for the workers
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or f"{folder}/model.gguf"
        if not options.model:
            make_model(path, options.type)
        command, socket = f"{folder}/sharedtensor", f"{folder}/s"
        root = Path(__file__).resolve().parents[2]
        subprocess.run(["go", "build", "-o", command, "./cmd/sharedtensor"], cwd=root, check=True)
        owner = subprocess.Popen([command, "serve", "--socket", socket, "--file-layout", f"m={path}"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            subprocess.run([command, "ls", "--socket", socket, "--wait", "--timeout", "60s", "m"], check=True, capture_output=True)
            print(f"{os.path.getsize(path) / 1e6:.0f} MB, {options.workers} processes\n")
            print("| weights | PSS of all processes | private | files | shared memory | model loaded | first answer |")
            print("|---|---|---|---|---|---|---|")
            answers = [
                measure("private copies (no mmap)", "copy", path, options.workers),
                measure("the file, in the page cache", "file", path, options.workers),
                measure("the owner's memory", "shared", socket, options.workers),
            ]
            evict(path)
            answers.append(measure("the file, first process after eviction", "file", path, 1))
            evict(path)
            answers.append(measure("the owner's memory, file evicted", "shared", socket, 1))
            assert len(set(answers)) == 1, f"the answers differ: {answers}"
        finally:
            owner.terminate()
            owner.wait()


if __name__ == "__main__":
    main()
