"""The sleep mode backend "sharedtensor": ``--enable-sleep-mode --sleep-mode-backend sharedtensor``.

The weights of an engine that sleeps are unmapped and stay with the owner. There is no copy on the host, and waking maps
them at the same addresses, so captured graphs stay valid. vLLM has sleep modes on GPUs only.
"""

from __future__ import annotations

from vllm.device_allocator.sleep_mode_backend import CuMemBackend

from ..attached import all_attached


class SharedTensorSleep(CuMemBackend):  # type: ignore[misc, unused-ignore]
    """Unmaps attached weights, and treats all other memory as vLLM's default backend does."""

    def suspend(self, level: int = 1) -> None:
        """Frees the memory of the engine. The leases stay, so that the owner keeps the version."""
        for each in all_attached():
            each.unmap()
        super().suspend(level)

    def resume(self, tags: list[str] | None = None) -> None:
        """Maps what `suspend` unmapped, or only what has one of the tags."""
        super().resume(tags)
        if tags is None or "weights" in tags:
            for each in all_attached():
                each.map()
