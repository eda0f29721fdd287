"""The bare engine beside what is measured: the handle of a `benchmarks.engine_worker` process."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import BenchmarkError

ROOT = Path(__file__).resolve().parents[1]
_STOP_S = 5.0


@dataclass(frozen=True)
class Ceilings:
    """As `benchmarks.ceilings.Ceilings`, which needs torch."""

    read_gb_s: float
    gemm_gflop_s: float


@dataclass(frozen=True)
class ModelFacts:
    """What bounds are computed from.

    Attributes:
        kernels: what computes.
        dtype: of weights and KV.
        weight_bytes: read by every decode step, LM head included.
        layer_weights: numbers in all layers' matrices; each costs two operations a token.
        head_weights: numbers in the LM head.
        kv_bytes_a_token: KV of one token, all layers.
        attention_flops_a_pair: operations of one query token with one key token, all layers and heads.
        max_model_len: the longest context.
        vocab_size: token ids are below it.
    """

    kernels: str
    dtype: str
    weight_bytes: int
    layer_weights: int
    head_weights: int
    kv_bytes_a_token: float
    attention_flops_a_pair: int
    max_model_len: int
    vocab_size: int


class EngineProcess:
    """Asks one question at a time.

    Raises (from every question):
        BenchmarkError: the process has ended; standard error says why.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def decode(self, num_rows: int, context: int, *, threads: int = 1, repeats: int = 15) -> float:
        """Tokens a second of decode steps of so many rows with `context` tokens each: the median step's."""
        return float(
            await self._ask(
                "rate", threads=threads, walk="decode", rows=num_rows, length=context, repeats=repeats, start=0
            )
        )

    async def prefill(self, num_rows: int, length: int, *, threads: int = 1, repeats: int = 3, start: int = 0) -> float:
        """Tokens a second of one step of so many prompts, or of their tokens from `start` on: the median step's."""
        return float(
            await self._ask(
                "rate", threads=threads, walk="prefill_text", rows=num_rows, length=length, repeats=repeats, start=start
            )
        )

    async def copy_seconds(self, num_tokens: int) -> float:
        """Seconds that a copy of so many tokens' KV takes from memory to memory."""
        return float(await self._ask("copy", tokens=num_tokens))

    async def ceilings(self, threads: int = 1) -> Ceilings:
        """What the machine can do at most."""
        return Ceilings(**await self._ask("ceilings", threads=threads))

    async def model(self) -> ModelFacts:
        """Of the configured model."""
        return ModelFacts(**await self._ask("model"))

    async def _ask(self, ask: str, **arguments: object) -> Any:  # noqa: ANN401 (JSON)
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None
        assert writer is not None
        writer.write(json.dumps({"ask": ask, **arguments}).encode() + b"\n")
        with suppress(ConnectionError):  # told below, as the end of its output
            await writer.drain()
        if not (line := await reader.readline()):
            raise BenchmarkError(f"the engine's process ended with code {await self._process.wait()}")
        return json.loads(line)


@asynccontextmanager
async def running_engine(shapes: Iterable[tuple[int, int]]) -> AsyncGenerator[EngineProcess]:
    """A process with the configured model, ended with the block.

    Args:
        shapes: the (rows, tokens) that will be asked for.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.engine_worker", json.dumps(list(shapes))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield EngineProcess(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
