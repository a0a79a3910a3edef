"""Loads a model once with vLLM's own loader and publishes it in the layout that engines use.

On a CPU the weights are loaded into the memory of the version itself, so there is no second copy. On a GPU they are
copied once, on the device.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...client import Client
from ...errors import ConfigurationError, InternalError
from .. import fingerprint
from ..attached import BUFFER, export
from . import key as keys
from .loader import processed, refuse_transforms


@dataclasses.dataclass(frozen=True)
class Seeded:
    """What was published.

    :ivar name: that it has.
    :ivar version: of it.
    :ivar tensors: the number of parameters and buffers.
    :ivar nbytes: the bytes of the version.
    """

    name: str
    version: int
    tensors: int
    nbytes: int


def seed(client: Client[Any], model: str, name: str, arguments: Mapping[str, Any]) -> list[Seeded]:
    """Publishes a model of vLLM. For engines with several ranks, such as with tensor_parallel_size=2, a process loads
    each rank, and it is published as NAME/rankN.

    :param model: what vLLM loads, such as a folder with a checkpoint.
    :param name: that it is published under.
    :param arguments: for vLLM's EngineArgs; the same as the engines' where they decide the layout, such as `dtype` and
        `quantization`.

    Raises CapabilityError for layers that would transform the weights after loading, and InternalError if the process
    of a rank fails.
    """
    world = _config(model, arguments).parallel_config.world_size
    place = f"file://{tempfile.gettempdir()}/sharedtensor-seed-{os.getpid()}-{os.urandom(6).hex()}"
    if world == 1:
        return [_seed_rank(client, model, name, arguments, 0, 1, place)]
    return _in_processes(world, (client, model, name, dict(arguments)), place)


def _in_processes(world: int, arguments: tuple[Any, ...], place: str) -> list[Seeded]:
    """Runs `_seed_rank` in a process for each rank. If one fails, the rest are ended, because they would wait for it.
    Raises InternalError then; the process has printed its error."""
    context = multiprocessing.get_context("spawn")
    answers = [context.Pipe(duplex=False) for _ in range(world)]
    processes = [
        context.Process(target=_answer, args=(answers[rank][1], *arguments, rank, world, place), daemon=True)
        for rank in range(world)
    ]
    found: dict[int, Seeded] = {}
    try:
        for rank, process in enumerate(processes):
            process.start()
            answers[rank][1].close()  # so that the end of the process is the end of the pipe
        for reader in _as_ready([reader for reader, _ in answers]):
            rank = [each for each, _ in answers].index(reader)
            try:
                found[rank] = reader.recv()
            except EOFError:
                raise InternalError(f"the process of rank {rank} ended without a version: see its output") from None
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
    return [found[rank] for rank in range(world)]


def _as_ready(readers: list[Any]) -> Iterator[Any]:
    """Yields each pipe once, when it has an answer or its process has ended."""
    left = list(readers)
    while left:
        for reader in multiprocessing.connection.wait(left):
            left.remove(reader)
            yield reader


def _answer(pipe: Any, *arguments: Any) -> None:
    pipe.send(_seed_rank(*arguments))


def _config(model: str, arguments: Mapping[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    defaults = {"skip_tokenizer_init": True, "enforce_eager": True}
    return EngineArgs(model=model, **{**defaults, **arguments}).create_engine_config()


def _seed_rank(
    client: Client[Any], model: str, name: str, arguments: Mapping[str, Any], rank: int, world: int, place: str
) -> Seeded:
    """Publishes the tensors of one rank. The ranks meet at the file `place`."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    vllm_config = _config(model, arguments)
    parallel = vllm_config.parallel_config
    parallel.rank = rank
    with set_current_vllm_config(vllm_config):
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(rank)
        os.environ["VLLM_DIST_IDENT"] = os.path.basename(place)  # vLLM's name for its collectives on a CPU
        init_distributed_environment(world, rank, place, rank, backend=backend)
        initialize_model_parallel(parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
        return _seed(client, name, vllm_config)


def _seed(client: Client[Any], name: str, vllm_config: Any) -> Seeded:
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
    from vllm.utils.torch_utils import set_default_torch_dtype

    model_config = vllm_config.model_config
    name = keys.rank_name(name, vllm_config)
    device = torch.device(vllm_config.device_config.device)
    key = keys.of(vllm_config, model_config)
    with set_default_torch_dtype(model_config.dtype):
        with device:
            module = initialize_model(vllm_config=vllm_config, model_config=model_config)
        refuse_transforms(module, device)
        tensors = export(module)
        writer = client.create(name, tensors, framework="torch") if device.type == "cpu" else None
        if writer is not None:
            _move(module, writer)
        DefaultModelLoader(vllm_config.load_config).load_weights(module, model_config)
        with processed(device):
            process_weights_after_loading(module, model_config, device)
        loaded = export(module)
        if writer is None:
            version = client.publish(name, loaded, source=model_config.model, metadata=fingerprint.metadata(key))
            nbytes = sum({t.data_ptr(): t.nbytes for t in loaded.values()}.values())
        else:
            _check_moved(loaded, writer)
            for each, value in loaded.items():
                if each.startswith(BUFFER):
                    writer[each].copy_(value)
            nbytes = writer.nbytes
            version = writer.commit(source=model_config.model, metadata=fingerprint.metadata(key))
    return Seeded(name, version, len(loaded), nbytes)


def _move(module: torch.nn.Module, writer: Mapping[str, torch.Tensor]) -> None:
    """Makes the version's memory that of the parameters, so that loading writes there. Values that the module set
    itself move along."""
    with torch.no_grad():
        for name, parameter in module.named_parameters(remove_duplicate=True):
            tensor = writer[name]
            tensor.copy_(parameter)
            parameter.data = tensor


def _check_moved(loaded: Mapping[str, torch.Tensor], writer: Mapping[str, torch.Tensor]) -> None:
    """Raises ConfigurationError if loading has given a parameter other memory, so that the version would lack it."""
    for name, value in loaded.items():
        if name.startswith(BUFFER):
            continue
        if name not in writer or writer[name].data_ptr() != value.data_ptr() or writer[name].shape != value.shape:
            raise ConfigurationError(f"loading replaced the memory of {name}: this model cannot be seeded in place")
