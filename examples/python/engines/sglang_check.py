"""Runs SGLang's engine on a CPU: with its own loader, on published weights in place, and with an update from them.

    pip install --no-deps sglang==0.5.23       # and what its import names; not its packages for CUDA
    python sglang_check.py --owner PATH_OF_SHAREDTENSOR

It exits with status 1 if a check fails. PyPI has no build of SGLang's kernels (`sgl_kernel`) for a CPU. A module with
functions that fail replaces them, and the engine computes with torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import sharedtensor as st

PROMPTS = [[1, 5, 9, 20], [7, 7, 300], [42, 4000, 4001, 4002, 17]]
LOADER = "sharedtensor.integrations.sglang.load_weights"
KERNELS = """
import importlib.abc, importlib.machinery, sys, types

class Missing:
    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(self.name + "." + name)

    def __call__(self, *_, **__):
        raise NotImplementedError(self.name)

class Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        return getattr(Missing(self.__name__), name)

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("sgl_kernel.") else None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Finder())
__path__ = []

def __getattr__(name):
    return getattr(Missing(__name__), name)
"""

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "max_total_tokens": 2048,
    "context_length": 256,
}


def generate(model: str, attach: list[str], update: list[str]) -> None:
    """Prints the tokens of an engine; with `update` those after it."""
    import sglang

    extra: dict[str, Any] = {}
    if attach:
        source = {"socket": attach[0], "model": attach[1]}
        extra["model_loader_extra_config"] = json.dumps({"sharedtensor": source})
    if update:
        extra["custom_weight_loader"] = [LOADER]
    engine = sglang.Engine(
        model_path=model,
        skip_tokenizer_init=True,
        disable_overlap_schedule=True,
        log_level="error",
        **SETTINGS,
        **extra,
    )
    if update:
        from sharedtensor.integrations.sglang import message

        done = [
            engine.begin_weight_update(),
            engine.update_weights_from_tensor(message(update[1], socket=update[0]), load_format=LOADER),
            engine.end_weight_update(),
        ]
        assert all(ok for ok, _ in done), done
    sampling = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    tokens = [engine.generate(input_ids=p, sampling_params=sampling)["output_ids"] for p in PROMPTS]
    print("RESULT " + json.dumps(tokens), flush=True)
    engine.shutdown()


def publish(model: str, socket: str, name: str) -> None:
    """Publishes a model's tensors in the layout of the engine, loaded by SGLang's own loader, and its file's tensors as
    NAME-file."""
    from safetensors.torch import load_file
    from sglang.benchmark import one_batch
    from sglang.srt.server_args import ServerArgs

    from sharedtensor.integrations import attached, fingerprint, sglang

    load = one_batch.load_model

    def loaded(*arguments: Any) -> Any:
        runner = load(*arguments)[0].torch_runner
        key = sglang.key(runner.model_config, runner.load_config)
        with st.connect(socket, framework="torch") as c:
            c.publish(name, attached.export(runner.model), metadata=fingerprint.metadata(key))
            c.publish(f"{name}-file", load_file(Path(model) / "model.safetensors"))
        print("RESULT []", flush=True)
        os._exit(0)  # nothing is measured

    one_batch.load_model = loaded
    one_batch.main(ServerArgs(model_path=model, **SETTINGS), one_batch.BenchArgs(correctness_test=True))


def run(folder: Path, *arguments: str) -> Any:
    """Runs this program and returns its result."""
    env = {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder / "kernels"), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise SystemExit(f"{command} ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")


def check(owner: str, folder: Path) -> None:
    module = folder / "kernels" / "sgl_kernel" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.write_text(KERNELS)
    models = [str(folder / f"model-{seed}") for seed in (0, 1)]
    for seed, model in enumerate(models):
        command = [sys.executable, str(Path(__file__).with_name("make_model.py")), model]
        subprocess.run([*command, "--layers", "2", "--hidden", "256", "--seed", str(seed)], check=True)
    socket = str(folder / "s.sock")
    server = subprocess.Popen([owner, "serve", "--socket", socket])
    try:
        st.connect(socket, wait=60).close()
        run(folder, "--model", models[1], "--publish", socket, "llm")
        first, second = (run(folder, "--model", model) for model in models)
        in_place = run(folder, "--model", models[0], "--attach", socket, "llm")
        updated = run(folder, "--model", models[0], "--update", socket, "llm-file")
    finally:
        server.terminate()
        server.wait(10)
    results = {
        "the two models give different tokens": first != second,
        "an engine on the files of the first computes with the published weights of the second": in_place == second,
        "an engine computes with them after an update": updated == second,
    }
    for text, right in results.items():
        print(f"{'ok' if right else 'FAILED'}: {text}")
    if not all(results.values()):
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--owner")
    parser.add_argument("--model", help=argparse.SUPPRESS)
    for name in ("--attach", "--update", "--publish"):
        parser.add_argument(name, nargs=2, default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.publish:
        publish(options.model, *options.publish)
    elif options.model:
        generate(options.model, options.attach, options.update)
    elif options.owner:
        with tempfile.TemporaryDirectory(prefix="st") as folder:
            check(options.owner, Path(folder))
    else:
        parser.error("--owner is required")


if __name__ == "__main__":
    main()
