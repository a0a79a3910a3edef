"""How often a failed call of `compute` is attempted again, and after which pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from .channels import grpc

R = TypeVar("R")

_MIN_PAUSE = 0.1  # seconds
_RETRIED = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "UNKNOWN"})


class RetryStrategy:
    """A number of attempts with pauses. Only errors that another attempt can avoid cause one: not refusals, limits and
    errors of the function.

    :param max_retries: attempts, with the first.
    """

    def __init__(self, max_retries: int = 3) -> None:
        if max_retries < 1:
            raise ValueError(f"max_retries={max_retries}: at least one attempt is needed")
        self.max_retries = max_retries

    def delay(self, attempt: int) -> float:
        """Returns the pause after an attempt in seconds; the first one is 0."""
        raise NotImplementedError

    def retryable(self, error: Exception) -> bool:
        """Reports whether another attempt could succeed."""
        return isinstance(error, grpc.RpcError) and error.code().name in _RETRIED

    def execute(self, function: Callable[[], R]) -> R:
        """Calls the function until it succeeds. Raises the error of the last attempt."""
        for attempt in range(self.max_retries):
            try:
                return function()
            except grpc.RpcError as err:
                if attempt + 1 == self.max_retries or not self.retryable(err):
                    raise
            time.sleep(self.delay(attempt))
        raise AssertionError("unreachable")


class ExponentialBackoff(RetryStrategy):
    """Pauses that double.

    :param initial_delay: the first pause in seconds.
    :param max_delay: the longest pause in seconds.
    :param jitter: the fraction by which a pause varies at random.
    """

    def __init__(
        self, max_retries: int = 3, initial_delay: float = 1.0, max_delay: float = 30.0, jitter: float = 0.25
    ) -> None:
        super().__init__(max_retries)
        self.initial_delay = initial_delay
        self.max_delay = max_delay
        self.jitter = jitter

    def delay(self, attempt: int) -> float:
        pause = min(self.initial_delay * 2.0**attempt, self.max_delay)
        pause += random.uniform(-self.jitter, self.jitter) * pause
        return max(pause, min(_MIN_PAUSE, self.initial_delay))


class FixedDelay(RetryStrategy):
    """Equal pauses of `delay` seconds."""

    def __init__(self, max_retries: int = 3, delay: float = 1.0) -> None:
        super().__init__(max_retries)
        self._delay = delay

    def delay(self, attempt: int) -> float:
        return self._delay
