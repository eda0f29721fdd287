"""What `benchmarks.services` measures, a function each; clients' clocks, services of one deployment, engine beside."""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.command import BenchmarkError
from benchmarks.deployment import Deployed
from benchmarks.engine_process import EngineProcess
from benchmarks.load import Prompts, TimedStream, num_arrived, under_way
from benchmarks.procfs import beside_compute, machine_seconds, spent, thread_seconds
from benchmarks.samples import Percentiles, Window, bursts_within, full_window, gaps_within, rate_within
from benchmarks.services_results import Cores, Decoding, FirstToken, Interference

LOAD_PROMPT_LEN = 2000
NUM_LOAD_STREAMS = 8
_LOAD_START_LEN = 64
_LOAD_MAX_TOKENS = 3000
"""More than eight streams can generate while the load lasts."""
_MIN_LOAD_PROMPTS = 2
_NUM_FIRST_TOKENS = 17
_MIN_FIRST_REPEATS = 3
_MAX_FIRST_REPEATS = 15
_MIN_GAPS = 300
_MIN_ENGINE_STEPS = 9
_MAX_ENGINE_STEPS = 60
_AHEAD_LEN = 512
_AHEAD_S = 0.02


@dataclass
class Bench:
    """What measurements need.

    Attributes:
        engine: the bare engine.
        deployed: services that are ready.
        prompts: new ones.
        seconds: a measurement goes on for so long at least.
        threads: that the service computes with.
    """

    engine: EngineProcess
    deployed: Deployed
    prompts: Prompts
    seconds: float
    threads: int = 1

    def streams(self, num_streams: int, prompt_len: int, max_tokens: int) -> list[TimedStream]:
        """So many, not begun yet."""
        client, prompts = self.deployed.client, self.prompts
        return [TimedStream(client, prompts.next(prompt_len), max_tokens) for _ in range(num_streams)]


@dataclass
class _CpuMeter:
    """CPU time of services and client from its making on."""

    pids: Mapping[str, int]
    num_compute_threads: int
    _began_s: float = field(init=False)
    _before: Mapping[str, Mapping[int, float]] = field(init=False)
    _client_s: float = field(init=False)
    _machine_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s, self._client_s, self._machine_s = time.perf_counter(), _own_seconds(), machine_seconds()
        self._before = {kind: thread_seconds(pid) for kind, pid in self.pids.items()}

    def cores(self) -> Cores:
        """Until now."""
        by_kind = {kind: spent(self._before[kind], thread_seconds(pid)) for kind, pid in self.pids.items()}
        seconds = time.perf_counter() - self._began_s
        compute, front = beside_compute(by_kind["decode"], self.num_compute_threads)
        prefill = sum(by_kind.get("prefill", {}).values())
        client = _own_seconds() - self._client_s
        others = max(0.0, machine_seconds() - self._machine_s - compute - front - prefill - client)
        return Cores(*(used / seconds for used in (compute, front, prefill, client, others)))


async def measure_decoding(bench: Bench, num_streams: int, prompt_len: int, max_tokens: int) -> Decoding:
    """Rounds of streams, each between two looks at the engine."""
    context = prompt_len + max_tokens // 2
    engine_rates = [await _engine_rate(bench, num_streams, context)]
    rates: list[float] = []
    gaps: list[float] = []
    spreads: list[float] = []
    cores: list[Cores] = []
    num_irregular, seconds = 0, 0.0
    while seconds < bench.seconds or len(gaps) < _MIN_GAPS:
        arrivals, used = await _decode_round(bench, num_streams, prompt_len, max_tokens)
        window = full_window(arrivals)
        bursts = bursts_within(arrivals, window)
        rates.append(rate_within(arrivals, window))
        gaps += gaps_within(arrivals, window)
        spreads += bursts.spreads_s
        num_irregular += bursts.num_irregular
        cores.append(used)
        seconds += window.seconds
        engine_rates.append(await _engine_rate(bench, num_streams, context))
    gap_ms = _in_ms(gaps)
    return Decoding(
        num_streams=num_streams,
        context=context,
        tokens_a_second=median(rates),
        engine_tokens_a_second=median(engine_rates),
        ratio=median(rates) / median(engine_rates),
        gap_ms=gap_ms,
        gap_p99_to_median=gap_ms.p99 / gap_ms.p50,
        spread_ms=_in_ms(spreads),
        num_irregular_steps=num_irregular,
        cores=Cores.mean(cores),
    )


async def measure_first_token(bench: Bench, prompt_len: int, step_budget: int | None, threshold: int) -> FirstToken:
    """One request after another, and the engine before and after; budget and threshold are those of the prefill."""
    engine_rates = [await bench.engine.prefill(1, prompt_len, threads=bench.threads, repeats=1)]
    ttfts: list[float] = []
    hand_overs: list[float] = []
    steps: list[float] = []
    began = time.perf_counter()
    while len(ttfts) < _MIN_FIRST_REPEATS or (
        len(ttfts) < _MAX_FIRST_REPEATS and time.perf_counter() - began < bench.seconds
    ):
        (stream,) = bench.streams(1, prompt_len, _NUM_FIRST_TOKENS)
        await stream.run()
        first_gap, *gaps = (
            later - earlier for earlier, later in zip(stream.arrivals, stream.arrivals[1:], strict=False)
        )
        ttfts.append(stream.ttft_s)
        hand_overs.append(first_gap - median(gaps))
        steps += gaps
    engine_rates.append(await bench.engine.prefill(1, prompt_len, threads=bench.threads, repeats=1))
    chunk_len = last_chunk_len(prompt_len, step_budget, threshold)
    copy_s = await bench.engine.copy_seconds(chunk_len)
    engine_s = prompt_len / median(engine_rates)
    return FirstToken(
        prompt_len=prompt_len,
        ttft_ms=_in_ms(ttfts),
        engine_ms=engine_s * 1e3,
        ratio=median(ttfts) / engine_s,
        step_ms=median(steps) * 1e3,
        hand_over_ms=_in_ms(hand_overs),
        last_chunk_len=chunk_len,
        copy_ms=copy_s * 1e3,
        bound_ms=hand_over_bound_s(copy_s) * 1e3,
    )


async def measure_interference(bench: Bench) -> Interference:
    """From the first long prompt's call to the last one's answer."""
    streams = bench.streams(NUM_LOAD_STREAMS, _LOAD_START_LEN, _LOAD_MAX_TOKENS)
    async with under_way(streams) as tasks:
        meter = _CpuMeter(bench.deployed.pids, bench.threads)
        began, num_before = time.perf_counter(), num_arrived(streams)
        ttfts: list[float] = []
        while (
            len(ttfts) < _MIN_LOAD_PROMPTS
            or time.perf_counter() - began < bench.seconds
            or num_arrived(streams) - num_before < _MIN_GAPS + NUM_LOAD_STREAMS
        ):
            (prompt,) = bench.streams(1, LOAD_PROMPT_LEN, 1)
            await prompt.run()
            ttfts.append(prompt.ttft_s)
            if any(task.done() for task in tasks):
                raise BenchmarkError("a stream ended while the load lasted")
        window, cores = Window(began, time.perf_counter()), meter.cores()
    arrivals = [stream.arrivals for stream in streams]
    decode, prefill = rate_within(arrivals, window), len(ttfts) * LOAD_PROMPT_LEN / window.seconds
    return Interference(
        gap_ms=_in_ms(gaps_within(arrivals, window)),
        ttft_ms=_in_ms(ttfts),
        decode_tokens_a_second=decode,
        prefill_tokens_a_second=prefill,
        tokens_a_second=decode + prefill,
        num_prompts=len(ttfts),
        seconds=window.seconds,
        cores=cores,
    )


def last_chunk_len(prompt_len: int, step_budget: int | None, threshold: int) -> int:
    """Tokens in the last step of a prompt that is computed alone; a threshold of 0 is none."""
    if step_budget is None:
        return prompt_len
    chunk_len = min(step_budget, threshold or step_budget)
    return (prompt_len - 1) % chunk_len + 1


def hand_over_bound_s(copy_s: float) -> float:
    """The longest that a hand-over may take, by the time of copying the last chunk's KV."""
    return 1.5 * copy_s + 0.002


async def _engine_rate(bench: Bench, num_rows: int, context: int) -> float:
    repeats = max(_MIN_ENGINE_STEPS, _MAX_ENGINE_STEPS // num_rows)
    return await bench.engine.decode(num_rows, context, threads=bench.threads, repeats=repeats)


async def _decode_round(
    bench: Bench, num_streams: int, prompt_len: int, max_tokens: int
) -> tuple[list[list[float]], Cores]:
    """Streams that begin together.

    Prompts that arrive one by one would not be computed in one step: the first streams would be done before the last
    ones are under way. So they all arrive while a longer prompt is computed.
    """
    ahead = bench.streams(1 if num_streams > 1 else 0, _AHEAD_LEN, 1)
    running = [asyncio.create_task(stream.run()) for stream in ahead]
    await asyncio.sleep(_AHEAD_S)
    streams = bench.streams(num_streams, prompt_len, max_tokens)
    try:
        async with under_way(streams) as tasks:
            meter = _CpuMeter(bench.deployed.pids, bench.threads)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            cores = meter.cores()
            await asyncio.gather(*tasks, *running)
    finally:
        for task in running:
            task.cancel()
    return [stream.arrivals for stream in streams], cores


def _in_ms(seconds: Sequence[float]) -> Percentiles:
    return Percentiles.of([value * 1e3 for value in seconds])


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system
