"""vLLM: engines that run on the owner's weights, without a copy.

Installing this package is enough: vLLM finds `register` by the entry point ``vllm.general_plugins``.

1. Load the model once, in the layout that engines use, and publish it:
   ``sharedtensor-py --socket SOCKET seed vllm MODEL --as llm``.
2. Start engines with ``--load-format sharedtensor --model-loader-extra-config '{"model": "llm", "socket": "SOCKET"}'``.
   Their parameters are the published memory (see `loader`).
3. Switch running engines to another version with ``--weight-transfer-config '{"backend": "sharedtensor"}'``: pause,
   `update_weights` with ``{"model": "llm", "version": 2}``, resume (see `transfer`).

`sleep` is a sleep mode backend that leaves the weights with the owner. `.ci/engines` runs these steps with real engines
on a CPU. Nothing of this has run on a GPU.
"""

from __future__ import annotations

NAME = "sharedtensor"
"""The name of the load format, of the weight transfer backend and of the sleep mode backend."""


def register() -> None:
    """Registers the loader, the weight transfer engine and the sleep mode backend in vLLM. vLLM calls it in each of its
    processes. Further calls change nothing."""
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader import register_model_loader

    if NAME not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(NAME, f"{__name__}.transfer", "SharedTensorEngine")
    from .loader import SharedTensorLoader

    register_model_loader(NAME)(SharedTensorLoader)
    if NAME not in SleepModeBackendFactory._registry:
        SleepModeBackendFactory.register_backend(NAME, f"{__name__}.sleep", "SharedTensorSleep")
