"""The sleep mode backend "sharedtensor": ``--enable-sleep-mode --sleep-mode-backend sharedtensor``.

The weights of an engine that sleeps stay with the owner, where they were published: any number of sleeping engines
share one copy in host memory, and an owner that places versions on GPUs frees the copy there. Waking maps the weights
at the same addresses, so captured graphs stay valid. vLLM has sleep modes on GPUs only.
"""

from __future__ import annotations

from vllm.device_allocator.sleep_mode_backend import CuMemBackend

from ..attached import all_attached


class SharedTensorSleep(CuMemBackend):  # type: ignore[misc, unused-ignore]
    """Gives up the memory of attached weights, and treats all other memory as vLLM's default backend does."""

    def suspend(self, level: int = 1) -> None:
        """Frees the memory of the engine. The leases stay, so that the owner keeps the version."""
        for each in all_attached():
            each.sleep()
        super().suspend(level)

    def resume(self, tags: list[str] | None = None) -> None:
        """Gives all memory that `suspend` took, or only what has one of the tags."""
        super().resume(tags)
        if tags is None or "weights" in tags:
            for each in all_attached():
                each.wake()
