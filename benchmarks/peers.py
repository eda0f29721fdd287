"""Other engines beside Baton's: the same work, the same weights, as many threads, in turns within one session.

    python -m benchmarks.peers --python PATH [PATH ...] [--only vllm llama.cpp transformers] [--threads N] [--json]

Each engine runs in a process of the first environment given that has it; Baton is not needed there. One that no
environment has, or that does not start, is skipped and named. docs/benchmarks.md says how the ratios are formed.
"""

from cli.start import interrupts_exit

with interrupts_exit():
    import argparse
    import asyncio
    import json
    import os
    import subprocess
    import sys
    import tempfile
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AsyncExitStack
    from dataclasses import asdict, dataclass, field
    from pathlib import Path
    from statistics import median

    from benchmarks.bounds import Ceilings, ModelFacts
    from benchmarks.command import BenchmarkError, end_on_sigterm, progress, run_to_end
    from benchmarks.engine_process import EngineProcess, running_engine
    from benchmarks.json_process import JsonProcess, running
    from cli.layout import ConfigFiles
    from shared.config.load import load_serving

BATON = "baton"
PEERS = {"vllm": "vllm", "llama.cpp": "llama_cpp", "transformers": "transformers"}
"""Names of engines, and the modules by which they are found."""
CASES = {
    "decode 1x128": ("decode", 1, 128),
    "decode 8x128": ("decode", 8, 128),
    "decode 32x128": ("decode", 32, 128),
    "prefill 1x512": ("prefill_text", 1, 512),
    "prefill 1x2048": ("prefill_text", 1, 2048),
    "prefill 8x256": ("prefill_text", 8, 256),
}
"""Walk, rows, and tokens of context or prompt."""
_SHAPES = [(rows, length) for _, rows, length in CASES.values()]
_GGUF_DTYPE = "bfloat16"
_REPEATS = {"decode": 7, "prefill_text": 1}


@dataclass
class Comparison:
    """What was measured.

    Attributes:
        rates: tokens a second by case and engine, one a round.
        versions: of the peers that ran.
        skipped: why the others did not.
    """

    model: ModelFacts
    ceilings: Ceilings
    threads: int
    dtype: str
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def ratio(self, case: str, peer: str) -> float:
        """Baton's rate by the peer's: the median over rounds of what both did in the same round."""
        rates = self.rates[case]
        return median(ours / theirs for ours, theirs in zip(rates[BATON], rates[peer], strict=True))


@dataclass(frozen=True)
class Options:
    """Of the command.

    Attributes:
        pythons: interpreters of other environments, the first that has a peer runs it.
        dtype: of the peers' weights and products.
    """

    pythons: tuple[Path, ...]
    peers: tuple[str, ...]
    threads: int
    cases: tuple[str, ...]
    num_rounds: int
    dtype: str


async def compare(options: Options) -> Comparison:
    """Runs the cases on every engine in turns.

    Raises:
        BenchmarkError: Baton's engine ended, or a peer did after it had started.
    """
    progress("starting baton's engine")
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running_engine(_SHAPES))
        found = Comparison(await engine.model(), await engine.ceilings(options.threads), options.threads, options.dtype)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-peers-")))
        peers = {}
        for name in options.peers:
            progress(f"starting {name}")
            if (peer := await _start(stack, name, options, scratch, found)) is not None:
                peers[name] = peer
        found.rates = {case: {name: [] for name in (BATON, *peers)} for case in options.cases}
        for index in range(options.num_rounds):
            for case in options.cases:
                walk, rows, length = CASES[case]
                progress(f"round {index + 1} of {options.num_rounds}: {case}")
                rates = found.rates[case]
                rates[BATON].append(await _baton_rate(engine, walk, rows, length, options.threads))
                for name, peer in peers.items():
                    request = {"walk": walk, "rows": rows, "length": length, "repeats": _REPEATS[walk]}
                    rates[name].append(await peer.ask("rate", **request))
    return found


def lines_of(found: Comparison) -> Iterator[str]:
    """For people."""
    yield f"baton: {found.model.title}; {found.threads} threads; peers: {found.dtype}"
    yield f"ceilings: reads {found.ceilings.read_gb_s:.1f} GB/s, products {found.ceilings.gemm_gflop_s:.0f} GFLOP/s"
    for name, version in found.versions.items():
        yield f"{name}: {version}"
    for name, reason in found.skipped.items():
        yield f"{name}: skipped, {reason}"
    yield "\n" + " " * 16 + f"{BATON:>12}" + "".join(f"{name:>14}{'baton ÷':>10}" for name in found.versions)
    for case, rates in found.rates.items():
        peers = "".join(f"{median(rates[name]):>14.1f}{found.ratio(case, name):>10.2f}" for name in found.versions)
        yield f"{case:<16}{median(rates[BATON]):>12.1f}{peers}"


def json_of(found: Comparison) -> dict[str, object]:
    """For programs."""
    ratios = {case: {name: found.ratio(case, name) for name in found.versions} for case in found.rates}
    return {**asdict(found), "ratios": ratios}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.split("\n")[0])
    parser.add_argument("--python", type=Path, nargs="+", required=True, metavar="PATH", help="of other environments")
    parser.add_argument("--only", nargs="+", choices=tuple(PEERS), default=list(PEERS), help="(default: all)")
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=tuple(CASES),
        default=list(CASES),
        metavar="CASE",
        help=(f"of {', '.join(CASES)} (default: all)"),
    )
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: 2)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of vLLM and transformers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    read = parser.parse_args(arguments)
    options = Options(tuple(read.python), tuple(read.only), read.threads, tuple(read.cases), read.rounds, read.dtype)

    def run() -> int:
        found = asyncio.run(compare(options))
        sys.stdout.write((json.dumps(json_of(found)) if read.json else "\n".join(lines_of(found))) + "\n")
        return 0

    end_on_sigterm()
    return run_to_end(run)


async def _start(
    stack: AsyncExitStack, name: str, options: Options, scratch: Path, found: Comparison
) -> JsonProcess | None:
    """The peer's process, ready; None where there is none, which is noted."""
    python = next((python for python in options.pythons if _has_module(python, PEERS[name])), None)
    if python is None:
        found.skipped[name] = f"no environment given has the module {PEERS[name]}"
        return None
    try:
        path, dtype = _model_path(name, scratch), _GGUF_DTYPE if name == "llama.cpp" else options.dtype
        module = f"benchmarks.peers_workers.{PEERS[name]}_worker"
        command = (str(python), "-m", module, str(path), str(options.threads), dtype)
        peer = await stack.enter_async_context(running(name, command, _environment(options.threads)))
        found.versions[name] = (await peer.read())["version"]
    except BenchmarkError as error:
        found.skipped[name] = str(error)
        return None
    return peer


def _model_path(name: str, scratch: Path) -> Path:
    from shared.engine.models.registry import resolve_model  # brings torch

    model_dir = resolve_model(load_serving(ConfigFiles().serving).model)
    if name != "llama.cpp":
        return model_dir
    from benchmarks.peers_gguf import write_gguf

    path = scratch / "model.gguf"
    write_gguf(model_dir, path)
    return path


def _has_module(python: Path, module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0  # noqa: S603
    except OSError as error:
        raise BenchmarkError(f"{python} cannot be run: {error.strerror}") from error


def _environment(threads: int) -> Mapping[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}


async def _baton_rate(engine: EngineProcess, walk: str, rows: int, length: int, threads: int) -> float:
    if walk == "decode":
        return await engine.decode(rows, length, threads=threads, repeats=_REPEATS[walk])
    return await engine.prefill(rows, length, threads=threads, repeats=_REPEATS[walk])


if __name__ == "__main__":
    sys.exit(main())
