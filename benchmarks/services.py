"""The services as a client sees them, beside the bare engine: real processes, gRPC, the client's clock.

    python -m benchmarks.services [--json] [--only NAME ...] [--seconds N] [--budgets N ...]

Sections: stream-1, stream-8, stream-32 and front (64 streams); first-64, first-512 and first-2048 (time to first
token, hand-over); interference (eight streams while prompts of 2,000 tokens come back to back); one-process (two
threads). A name may be a pattern. docs/benchmarks.md says what each figure means. Progress goes to standard error.
"""

from cli.start import interrupts_exit, quiet_grpc

quiet_grpc()

with interrupts_exit():
    import argparse
    import asyncio
    import gc
    import json
    import os
    import sys
    from collections.abc import Sequence
    from fnmatch import fnmatch

    from rich.console import Console

    from benchmarks.command import end_on_sigterm, progress, run_to_end
    from benchmarks.deployment import running_single, running_split
    from benchmarks.engine_process import EngineProcess, running_engine
    from benchmarks.load import Prompts
    from benchmarks.services_report import json_of, lines_of, rows_of, table_of
    from benchmarks.services_results import Results
    from benchmarks.services_sections import (
        Bench,
        measure_decoding,
        measure_first_token,
        measure_interference,
    )
    from cli.layout import ConfigFiles
    from shared.config.load import load_serving
    from shared.config.resolve import resolve

NUM_STREAMS = {"stream-1": (1, 64, 128), "stream-8": (8, 64, 128), "stream-32": (32, 64, 128), "front": (64, 32, 64)}
"""Streams, tokens of each prompt, tokens of each completion."""
PROMPT_LENS = {"first-64": 64, "first-512": 512, "first-2048": 2048}
SECTIONS = (*NUM_STREAMS, *PROMPT_LENS, "interference", "one-process")

_SHAPES = [(64, 128), (1, 2048)]
"""The most rows and tokens that the engine is asked for."""
_WIDTH = 150


class Run:
    """One run of the command.

    Args:
        sections: names from SECTIONS.
        seconds: each measurement goes on for so long at least.
        budgets: step budgets of one process, tried under interference beside the configured one.
        engine: the bare engine.
        results: what is filled in.
    """

    def __init__(
        self, sections: Sequence[str], seconds: float, budgets: Sequence[int], engine: EngineProcess, results: Results
    ) -> None:
        self._sections = sections
        self._seconds = seconds
        self._budgets = budgets
        self._engine = engine
        self._results = results
        self._prompts = Prompts(results.model.vocab_size)
        self._resolved = resolve(load_serving(ConfigFiles().serving))

    async def measure(self) -> None:
        """All sections that were asked for, one deployment after the other."""
        if set(self._sections) - {"one-process"}:
            await self._split()
        if "interference" in self._sections:
            for budget in (None, *self._budgets):
                await self._single_interference(budget)
        if "one-process" in self._sections:
            await self._one_process()
        self._results.ceilings_after = await self._engine.ceilings()

    async def _split(self) -> None:
        progress("starting a prefill and a decode service")
        async with running_split() as deployed:
            bench = Bench(self._engine, deployed, self._prompts, self._seconds)
            await _touch(bench)
            for name in self._sections:
                if name in NUM_STREAMS:
                    progress(name)
                    num_streams, prompt_len, max_tokens = NUM_STREAMS[name]
                    found = await measure_decoding(bench, num_streams, prompt_len, max_tokens)
                    self._results.decoding[num_streams] = found
                elif name in PROMPT_LENS:
                    progress(name)
                    walk = self._resolved.walk("prefill", "prefill_text")
                    threshold = self._resolved.long_prefill_token_threshold
                    length = PROMPT_LENS[name]
                    first = await measure_first_token(bench, length, walk.step_budget, threshold)
                    self._results.first_token[length] = first
                elif name == "interference":
                    progress(f"{name}: split")
                    self._results.engine["decode 8x128"] = await self._engine.decode(8, 128)
                    self._results.engine["prefill 1x2048"] = await self._engine.prefill(1, 2048, repeats=1)
                    self._results.interference["split"] = await measure_interference(bench)

    async def _single_interference(self, budget: int | None) -> None:
        progress(f"interference: one process, step budget {budget or 'as configured'}")
        async with running_single(2, budget) as deployed:
            bench = Bench(self._engine, deployed, self._prompts, self._seconds, threads=2)
            await _touch(bench)
            name = str(budget or self._results.default_budget)
            self._results.interference[name] = await measure_interference(bench)

    async def _one_process(self) -> None:
        progress("one-process")
        results = self._results.one_process
        async with running_single(2) as deployed:
            bench = Bench(self._engine, deployed, self._prompts, self._seconds, threads=2)
            await _touch(bench)
            for num_streams in (1, 8):
                results.decoding[num_streams] = await measure_decoding(bench, num_streams, 64, 128)
            for length in (512, 2048):
                results.first_token[length] = await measure_first_token(bench, length, self._results.default_budget, 0)


async def run(sections: Sequence[str], seconds: float, budgets: Sequence[int]) -> Results:
    """Measures.

    Raises:
        BenchmarkError: a process did not start or ended, a call failed, or a measurement would not mean what it says.
    """
    progress("starting the engine")
    async with running_engine(_SHAPES) as engine:
        budget = resolve(load_serving(ConfigFiles().serving)).walk("decode", "mixed").step_budget
        results = Results(await engine.model(), await engine.ceilings(), budget or 0, _settings())
        await Run(sections, seconds, budgets, engine, results).measure()
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.services", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=["*"], help=f"of {', '.join(SECTIONS)}; patterns")
    parser.add_argument("--seconds", type=float, default=5.0, help="least length of a measurement (default: 5)")
    parser.add_argument(
        "--budgets", type=int, nargs="*", default=[128, 256], metavar="N",
        help="step budgets of one process, tried beside the configured one (default: 128 256)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    sections = [name for name in SECTIONS if any(fnmatch(name, pattern) for pattern in options.only)]
    if not sections:
        parser.error(f"no section is named {' or '.join(options.only)}; there are {', '.join(SECTIONS)}")

    def measure() -> int:
        _print(asyncio.run(run(sections, options.seconds, options.budgets)), options.json)
        return 0

    end_on_sigterm()
    gc.freeze()
    return run_to_end(measure)


def _print(results: Results, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(json_of(results)) + "\n")
        return
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    console.print("\n".join(lines_of(results)), soft_wrap=True)
    console.print(table_of(rows_of(results)))


async def _touch(bench: Bench) -> None:
    """One short request, so that connections are there and code has run once."""
    (stream,) = bench.streams(1, 40, 4)
    await stream.run()


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.upper().startswith("BATON_")}


if __name__ == "__main__":
    sys.exit(main())
