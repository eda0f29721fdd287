"""The engine alone: tokens a second in decode and prefill steps, beside what the machine can do at most.

    python -m benchmarks.engine [--threads 1 2] [--json] [--kernels auto|native|torch] [--weights dtype|int8]

A decode figure `8x128` is eight rows with 128 tokens of context, a prefill figure `8x256` eight prompts of 256 tokens
in one step. Ceilings are measured before and after with as many threads; quote ratios to them, as both drift. Each
figure stands beside its bound (`benchmarks.bounds`) and the share of it that is required (`benchmarks.required`).
"""

import argparse
import sys
from collections.abc import Iterable, Sequence

import structlog
import torch

from benchmarks.bounds import ModelFacts
from benchmarks.ceilings import measure_ceilings
from benchmarks.engine_report import Figures, as_json, report
from benchmarks.required import DECODE, PREFILL
from benchmarks.timing import seconds_of
from shared.config.resolve import ResolvedWalk
from shared.engine.models.registry import resolve_model
from shared.engine.runner import LoadedModel, Runner, load_model
from shared.engine.step import StepRow
from shared.kv.pool import KvPool
from shared.ladder import Ladder

BLOCK_SIZE = 32
TOP_RUNG = 2048


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


def facts_of(model: LoadedModel) -> ModelFacts:
    """What bounds are computed from."""
    config, weights = model.config, model.weights
    matrices = [
        weight.data for layer in weights.layers for weight in (layer.qkv, layer.output, layer.gate_up, layer.down)
    ]
    head = weights.lm_head.data
    return ModelFacts(
        kernels=model.ops.name,
        weights=str(head.dtype).removeprefix("torch."),
        dtype=model.dtype,
        weight_bytes=sum(matrix.numel() * matrix.element_size() for matrix in [*matrices, head]),
        layer_weights=sum(matrix.numel() for matrix in matrices),
        head_weights=head.numel(),
        kv_bytes_a_token=model.kv_layout(BLOCK_SIZE).block_bytes / BLOCK_SIZE,
        attention_flops_a_pair=4 * config.num_layers * config.num_heads * config.head_dim,
        max_model_len=config.max_model_len,
        vocab_size=config.vocab_size,
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
    write = as_json if options.json else report
    sys.stdout.write(write(facts_of(model), figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
