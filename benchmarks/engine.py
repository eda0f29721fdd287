"""The engine alone: tokens a second in decode and prefill steps, beside what the machine can do at most.

    python -m benchmarks.engine [--threads 1 2] [--json] [--kernels auto|native|torch] [--weights dtype|int8]

A decode figure `8x128` is eight rows with 128 tokens of context, a prefill figure `8x256` eight prompts of 256 tokens
in one step. Ceilings are measured before and after with as many threads; quote ratios to them, as both drift.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import structlog
import torch

from benchmarks.ceilings import Ceilings, measure_ceilings, seconds_of
from shared.config.resolve import ResolvedWalk
from shared.engine.models.registry import resolve_model
from shared.engine.runner import LoadedModel, Runner, load_model
from shared.engine.step import StepRow
from shared.kv.pool import KvPool
from shared.ladder import Ladder

DECODE = {"1x128": (1, 128), "8x128": (8, 128), "32x128": (32, 128), "8x1024": (8, 1024)}
PREFILL = {"1x512": (1, 512), "1x2048": (1, 2048), "8x256": (8, 256)}
BLOCK_SIZE = 32
TOP_RUNG = 2048


@dataclass(frozen=True)
class Figures:
    """Tokens a second of one number of threads, and the ceilings before and after."""

    decode: Mapping[str, float]
    prefill: Mapping[str, float]
    before: Ceilings
    after: Ceilings


class Bench:
    """A runner with random prompts.

    Args:
        model: what it runs.
        shapes: the (rows, tokens) that will be asked for.
    """

    def __init__(self, model: LoadedModel, shapes: Iterable[tuple[int, int]] = (DECODE | PREFILL).values()) -> None:
        sizes = list(shapes)
        num_blocks = 1 + max(rows * -(-(length + 1) // BLOCK_SIZE) for rows, length in sizes)
        max_num_rows = max(rows for rows, _ in sizes)
        pool = KvPool.anonymous(model.kv_layout(BLOCK_SIZE), num_blocks, "benchmark")
        walks = [
            ResolvedWalk("prefill", "prefill_text", TOP_RUNG, Ladder((TOP_RUNG,))),
            ResolvedWalk("decode", "decode", None, Ladder((max_num_rows,))),
        ]
        self._vocab_size = model.config.vocab_size
        self._runner = Runner(model, pool, walks, max_num_rows=max_num_rows)

    def tokens_a_second(self, walk: str, num_rows: int, length: int, repeats: int, start: int = 0) -> float:
        """Of prompts of `length` tokens, or of single tokens behind so many.

        Args:
            walk: "prefill_text" or "decode".
            num_rows: prompts in the step.
            length: tokens.
            repeats: steps timed, of which the median counts.
            start: tokens of the prompts that are there already: a step of a long prompt's later tokens.
        """
        is_decode = walk == "decode"
        num_blocks = -(-(start + length + 1) // BLOCK_SIZE)
        rows = [
            StepRow(
                torch.randint(self._vocab_size, (1 if is_decode else length,)).tolist(),
                length if is_decode else start,
                range(1 + index * num_blocks, 1 + (index + 1) * num_blocks),
                wants_logits=True,
            )
            for index in range(num_rows)
        ]
        num_tokens = sum(len(row.token_ids) for row in rows)
        return num_tokens / seconds_of(lambda: self._runner.run(walk, rows), repeats)


def measure(model: LoadedModel, num_threads: int) -> Figures:
    """All figures with so many threads."""
    before = measure_ceilings(num_threads)
    torch.set_num_threads(num_threads)
    bench = Bench(model)
    decode = {name: bench.tokens_a_second("decode", *sizes, repeats=15) for name, sizes in DECODE.items()}
    prefill = {name: bench.tokens_a_second("prefill_text", *sizes, repeats=3) for name, sizes in PREFILL.items()}
    return Figures(decode, prefill, before, measure_ceilings(num_threads))


def report(figures: Mapping[int, Figures], model: LoadedModel) -> str:
    """A table for people, with ratios to the ceilings."""
    num_weights = sum(
        weight.data.numel()
        for layer in model.weights.layers
        for weight in (layer.qkv, layer.output, layer.gate_up, layer.down)
    )
    weight_bytes = (num_weights + model.weights.lm_head.data.numel()) * model.weights.lm_head.data.element_size()
    held_as = "int8 weights" if model.ops.weights == "int8" else model.dtype
    lines = [f"{model.ops.name} kernels, {held_as}, {weight_bytes / 1e9:.3f} GB of weights a step"]
    for num_threads, found in figures.items():
        read = min(found.before.read_gb_s, found.after.read_gb_s)
        gemm = min(found.before.gemm_gflop_s, found.after.gemm_gflop_s)
        reads = f"{found.before.read_gb_s:.1f}, then {found.after.read_gb_s:.1f} GB/s"
        products = f"{found.before.gemm_gflop_s:.0f}, then {found.after.gemm_gflop_s:.0f} GFLOP/s"
        lines += [
            "",
            f"{num_threads} threads: reads at {reads}; 2048³ products at {products}",
            *(f"  decode  {name:<8}{rate:10.1f} tokens/s" for name, rate in found.decode.items()),
            *(f"  prefill {name:<8}{rate:10.1f} tokens/s" for name, rate in found.prefill.items()),
            f"  decode 1x128 reads weights at {found.decode['1x128'] * weight_bytes / 1e9 / read:.0%} of the ceiling",
            f"  prefill 1x512 multiplies at {found.prefill['1x512'] * 2 * num_weights / 1e9 / gemm:.0%} of the ceiling",
        ]
    return "\n".join(lines)


def as_json(figures: Mapping[int, Figures]) -> str:
    """`ceilings` are those measured before, with the most threads; `ceilings_after` and each number's own beside."""
    most = figures[max(figures)]
    return json.dumps(
        {
            "ceilings": asdict(most.before),
            "ceilings_after": asdict(most.after),
            "threads": {
                str(number): {"decode": dict(found.decode), "prefill": dict(found.prefill)}
                for number, found in figures.items()
            },
            "ceilings_by_threads": {str(number): asdict(found.before) for number, found in figures.items()},
        }
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="as in serving.yaml (default: %(default)s)")
    parser.add_argument("--kernels", choices=("auto", "native", "torch"), default="auto")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--weights", choices=("dtype", "int8"), default="dtype")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="(default: 1 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    model_dir, kernels, weights = resolve_model(options.model), options.kernels, options.weights
    model = load_model(model_dir, options.dtype, block_size=BLOCK_SIZE, kernels=kernels, weights=weights)
    figures = {number: measure(model, number) for number in options.threads}
    sys.stdout.write((as_json(figures) if options.json else report(figures, model)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
