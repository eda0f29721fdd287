"""What dtypes and int8 weights cost in quality: logits and perplexity on real text, beside float32.

    python -m benchmarks.quality [--json] [--text FILE ...] [--chunk 512] [--kernels auto|native|torch] [--threads N]

The text is cut into chunks that know nothing of each other; every token of a chunk is judged by those before it. Unless
files are named it is the project's licence and decisions 1 to 9: English prose that does not change.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
import torch

from benchmarks.command import BenchmarkError, progress, run_to_end
from shared.config.resolve import ResolvedWalk
from shared.engine.models.registry import resolve_model
from shared.engine.runner import LoadedModel, Runner, load_model
from shared.engine.step import StepRow
from shared.kv.pool import KvPool
from shared.ladder import Ladder
from shared.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[1]
TEXT_FILES = (ROOT / "LICENSE", *sorted((ROOT / "docs" / "decisions").glob("00[1-9]-*.md")))
CHUNK_LEN = 512
BLOCK_SIZE = 32
VARIANTS = {"bfloat16": "dtype", "int8": "int8"}
"""Name → weights, as in serving.yaml; the dtype of all is bfloat16."""


@dataclass(frozen=True)
class Quality:
    """How near a variant is to float32.

    Attributes:
        max_logit_error: largest difference of a logit.
        mean_logit_error: mean difference of all logits.
        top1_agreement: share of tokens after which both hold the same token for the likeliest.
        perplexity: exp of the mean negative log likelihood of each next token.
        perplexity_ratio: to float32's.
        perplexity_ratio_error: standard error of that, over tokens.
    """

    max_logit_error: float
    mean_logit_error: float
    top1_agreement: float
    perplexity: float
    perplexity_ratio: float
    perplexity_ratio_error: float


@dataclass(frozen=True)
class Report:
    """What was measured.

    Attributes:
        ops: name of the ops that the variants ran with.
        exact_perplexity: float32's.
        variants: name → its quality.
    """

    ops: str
    num_tokens: int
    exact_perplexity: float
    variants: Mapping[str, Quality]


class Reader:
    """A model that reads chunks of up to `chunk_len` tokens."""

    def __init__(self, model: LoadedModel, chunk_len: int) -> None:
        num_blocks = -(-chunk_len // BLOCK_SIZE)
        self._table = tuple(range(1, num_blocks + 1))
        pool = KvPool.anonymous(model.kv_layout(BLOCK_SIZE), num_blocks + 1, "quality")
        walk = ResolvedWalk("prefill", "prefill_text", None, Ladder((chunk_len,)))
        self._runner = Runner(model, pool, [walk], max_num_rows=chunk_len)

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """float32 [tokens, vocab_size]: what follows each token; valid until the next call.

        Each token is a row of its own, as a row has logits for its last token alone. They share their blocks: all KV of
        a step is written before anything attends to it.
        """
        rows = [StepRow([token], start, self._table, wants_logits=True) for start, token in enumerate(token_ids)]
        return self._runner.run("prefill_text", rows)


class Tally:
    """Sums up a variant's chunks."""

    def __init__(self) -> None:
        self._max_error = 0.0
        self._mean_errors: list[float] = []
        self._agrees: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []
        self._exact_losses: list[torch.Tensor] = []

    def add(self, token_ids: Sequence[int], exact: torch.Tensor, found: torch.Tensor) -> None:
        """One chunk, with float32's logits and the variant's."""
        errors = (found - exact).abs()
        self._max_error = max(self._max_error, errors.max().item())
        self._mean_errors.append(errors.mean(dtype=torch.float64).item())
        self._agrees.append(found.argmax(-1) == exact.argmax(-1))
        self._losses.append(next_token_losses(found, token_ids))
        self._exact_losses.append(next_token_losses(exact, token_ids))

    def quality(self) -> Quality:
        """Of all chunks, which are of the same length."""
        losses, exact_losses = torch.cat(self._losses), torch.cat(self._exact_losses)
        differences = losses - exact_losses
        ratio = math.exp(differences.mean())
        return Quality(
            max_logit_error=self._max_error,
            mean_logit_error=sum(self._mean_errors) / len(self._mean_errors),
            top1_agreement=torch.cat(self._agrees).double().mean().item(),
            perplexity=math.exp(losses.mean()),
            perplexity_ratio=ratio,
            perplexity_ratio_error=ratio * differences.std().item() / math.sqrt(len(differences)),
        )

    @property
    def exact_perplexity(self) -> float:
        """Float32's, over the same chunks."""
        return math.exp(torch.cat(self._exact_losses).mean())


def next_token_losses(logits: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
    """float64 [tokens - 1]: negative log likelihood of each token but the first, by the logits before it."""
    targets = torch.tensor(token_ids[1:])
    return torch.nn.functional.cross_entropy(logits[:-1], targets, reduction="none").double()


def chunks_of(token_ids: Sequence[int], chunk_len: int) -> Iterator[Sequence[int]]:
    """Whole chunks; what is left at the end is dropped."""
    for start in range(0, len(token_ids) - chunk_len + 1, chunk_len):
        yield token_ids[start : start + chunk_len]


def measure(model_dir: Path, chunks: Sequence[Sequence[int]], kernels: str = "auto") -> Report:
    """Compares all variants with float32 in plain torch.

    Args:
        model_dir: as for `load_model`.
        chunks: token ids, of the same length.
        kernels: of the variants, as in serving.yaml.
    """
    chunk_len = len(chunks[0])
    exact = Reader(load_model(model_dir, "float32"), chunk_len)
    models = {
        name: load_model(model_dir, "bfloat16", block_size=BLOCK_SIZE, kernels=kernels, weights=weights)
        for name, weights in VARIANTS.items()
    }
    readers = {name: Reader(model, chunk_len) for name, model in models.items()}
    tallies = {name: Tally() for name in VARIANTS}
    for number, token_ids in enumerate(chunks, start=1):
        progress(f"chunk {number} of {len(chunks)}")
        logits = exact.logits(token_ids)
        for name, reader in readers.items():
            tallies[name].add(token_ids, logits, reader.logits(token_ids))
    (ops,) = {model.ops.name for model in models.values()}
    exact_perplexity = next(iter(tallies.values())).exact_perplexity
    return Report(ops, chunk_len * len(chunks), exact_perplexity, {name: t.quality() for name, t in tallies.items()})


def as_table(report: Report) -> str:
    """For people."""
    lines = [
        f"{report.num_tokens} tokens, {report.ops} kernels; errors are differences from float32",
        f"{'':10}{'max error':>11}{'mean error':>12}{'same top 1':>12}{'perplexity':>12}{'ratio':>18}",
        f"{'float32':10}{'':>35}{report.exact_perplexity:12.3f}",
    ]
    for name, found in report.variants.items():
        ratio = f"{found.perplexity_ratio:.4f} ± {found.perplexity_ratio_error:.4f}"
        errors = f"{found.max_logit_error:11.3f}{found.mean_logit_error:12.4f}{found.top1_agreement:12.2%}"
        lines.append(f"{name:10}{errors}{found.perplexity:12.3f}{ratio:>18}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="as in serving.yaml (default: %(default)s)")
    parser.add_argument("--text", type=Path, nargs="+", default=TEXT_FILES, help="files of text to read")
    parser.add_argument("--chunk", type=int, default=CHUNK_LEN, help="tokens a chunk (default: %(default)s)")
    parser.add_argument("--kernels", choices=("auto", "native", "torch"), default="auto")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    torch.set_num_threads(options.threads)

    def run() -> int:
        model_dir = resolve_model(options.model)
        text = "\n\n".join(path.read_text(encoding="utf-8") for path in options.text)
        chunks = list(chunks_of(Tokenizer.from_directory(model_dir).encode(text), options.chunk))
        if not chunks:
            raise BenchmarkError(f"the text is shorter than one chunk of {options.chunk} tokens")
        report = measure(model_dir, chunks, options.kernels)
        sys.stdout.write((json.dumps(asdict(report)) if options.json else as_table(report)) + "\n")
        return 0

    return run_to_end(run)


if __name__ == "__main__":
    sys.exit(main())
