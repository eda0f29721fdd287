"""The bare engine beside what is measured: the handle of a `benchmarks.engine_worker` process."""

import json
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from benchmarks.bounds import Ceilings, ModelFacts
from benchmarks.json_process import JsonProcess, running


class EngineProcess:
    """Asks one question at a time.

    Raises (from every question):
        BenchmarkError: the process has ended; standard error says why.
    """

    def __init__(self, process: JsonProcess) -> None:
        self._process = process

    async def decode(self, num_rows: int, context: int, *, threads: int = 1, repeats: int = 15) -> float:
        """Tokens a second of decode steps of so many rows with `context` tokens each: the median step's."""
        shape = {"rows": num_rows, "length": context, "start": 0}
        rate: float = await self._process.ask("rate", threads=threads, walk="decode", repeats=repeats, **shape)
        return rate

    async def prefill(self, num_rows: int, length: int, *, threads: int = 1, repeats: int = 3, start: int = 0) -> float:
        """Tokens a second of one step of so many prompts, or of their tokens from `start` on: the median step's."""
        shape = {"rows": num_rows, "length": length, "start": start}
        rate: float = await self._process.ask("rate", threads=threads, walk="prefill_text", repeats=repeats, **shape)
        return rate

    async def copy_seconds(self, num_tokens: int) -> float:
        """Seconds that a copy of so many tokens' KV takes from memory to memory."""
        seconds: float = await self._process.ask("copy", tokens=num_tokens)
        return seconds

    async def ceilings(self, threads: int = 1) -> Ceilings:
        """What the machine can do at most."""
        return Ceilings(**await self._process.ask("ceilings", threads=threads))

    async def model(self) -> ModelFacts:
        """Of the configured model."""
        return ModelFacts(**await self._process.ask("model"))


@asynccontextmanager
async def running_engine(shapes: Iterable[tuple[int, int]]) -> AsyncGenerator[EngineProcess]:
    """A process with the configured model, ended with the block.

    Args:
        shapes: the (rows, tokens) that will be asked for.
    """
    command = (sys.executable, "-m", "benchmarks.engine_worker", json.dumps(list(shapes)))
    async with running("the engine", command) as process:
        yield EngineProcess(process)
