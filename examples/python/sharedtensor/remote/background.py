"""An event loop in a thread, for programs without asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..errors import ClosedError

R = TypeVar("R")


class Background:
    """Runs coroutines in a thread, until it is closed."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="sharedtensor-remote", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs a coroutine and returns its result. An interrupt cancels it. Raises ClosedError after `close`."""
        if self.loop.is_closed() or not self._thread.is_alive():
            work.close()
            raise ClosedError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels what runs and ends the thread. A second call has no effect."""
        if self.loop.is_closed() or not self._thread.is_alive():
            return

        async def cancel() -> None:
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            asyncio.get_running_loop().stop()

        asyncio.run_coroutine_threadsafe(cancel(), self.loop)
        self._thread.join()
