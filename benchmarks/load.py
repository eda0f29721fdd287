"""Requests as a client sees them: greedy completions of random prompts, with the time at which each token arrived."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from baton_client import AsyncBatonClient
from benchmarks.command import BenchmarkError

_POLL_S = 0.002


class Prompts:
    """Random prompts, of which no two are alike; equal seeds give equal ones.

    Args:
        vocab_size: token ids are below it.
        seed: of the random numbers.
    """

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._random = random.Random(seed)  # noqa: S311 (nothing secret)

    def next(self, length: int) -> list[int]:
        """A prompt of so many tokens."""
        return [self._random.randrange(self._vocab_size) for _ in range(length)]


class TimedStream:
    """One greedy completion and the times of its tokens, on `time.perf_counter`.

    Args:
        client: who asks.
        prompt: token ids.
        max_tokens: it has so many tokens, whatever they are.
    """

    def __init__(self, client: AsyncBatonClient, prompt: Sequence[int], max_tokens: int) -> None:
        self._client = client
        self._prompt = prompt
        self._max_tokens = max_tokens
        self.sent_s = 0.0
        self.arrivals: list[float] = []

    @property
    def ttft_s(self) -> float:
        """From the call to the first token."""
        return self.arrivals[0] - self.sent_s

    async def run(self) -> None:
        """Asks, and returns when the last token is here.

        Raises:
            BatonClientError: the call failed.
            BenchmarkError: tokens of the prompt came from a cache, or tokens are missing.
        """
        messages = self._client.stream_messages(
            self._prompt, max_tokens=self._max_tokens, temperature=0, ignore_eos=True, token_ids=True
        )
        self.sent_s = time.perf_counter()
        async with messages:
            async for message in messages:
                now = time.perf_counter()
                if message.HasField("delta"):
                    self.arrivals += [now] * len(message.delta.token_ids)
                elif message.HasField("started") and message.started.cached_tokens:
                    raise BenchmarkError(f"{message.started.cached_tokens} tokens of a new prompt came from a cache")
        if len(self.arrivals) != self._max_tokens:
            raise BenchmarkError(f"{len(self.arrivals)} tokens arrived of {self._max_tokens}")


def num_arrived(streams: Sequence[TimedStream]) -> int:
    """Tokens that all of them have until now."""
    return sum(len(stream.arrivals) for stream in streams)


@asynccontextmanager
async def under_way(streams: Sequence[TimedStream]) -> AsyncGenerator[list[asyncio.Task[None]]]:
    """Runs streams at the same time; within the block each has its second token, after it they are cancelled.

    Raises:
        BatonClientError: a call failed.
        BenchmarkError: a stream ended before the last one was under way.
    """
    tasks = [asyncio.create_task(stream.run()) for stream in streams]
    try:
        while not all(len(stream.arrivals) > 1 for stream in streams):
            await asyncio.sleep(_POLL_S)
            for task in tasks:
                if task.done():
                    task.result()
                    raise BenchmarkError("a stream ended before all were under way; more tokens are needed")
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
