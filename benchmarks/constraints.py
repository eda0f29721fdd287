"""What constraints cost, and whether they hold: llguidance, and xgrammar where it is installed.

    python -m benchmarks.constraints [--json] [--schemas 200] [--walks 3] [--model smollm2-135m-instruct]

Random JSON Schemas that bound their output (`tests/schemas.py`) are compiled, and random walks over the tokens that
each library allows are judged by `jsonschema`. xgrammar is not a dependency: install it beside Baton to compare.
"""

import argparse
import importlib.util
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from types import ModuleType
from typing import Any, Protocol

import jsonschema
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.command import BenchmarkError, progress, run_to_end
from shared.constraints.compiler import ConstraintCompiler
from shared.constraints.constraint import Constraint, ConstraintKind
from shared.engine.models.registry import resolve_model
from shared.text.tokenizer import Tokenizer
from tests.schemas import random_schemas

MAX_STEPS = 1000
PATTERNS = (
    r"[a-z]{3,20}",
    r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}",
    r"(yes|no|maybe)( [a-z]{1,8}){0,5}",
    r"[A-Za-z0-9 ,.]{1,200}",
)


class Matcher(Protocol):
    """One completion under one library."""

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next, [vocab_size]."""

    def advance(self, token_id: int) -> None:
        """Take one."""


Compile = Callable[[Constraint], Matcher]
Library = Callable[[Tokenizer], Compile]


@dataclass
class Tally:
    """Figures of one library.

    Attributes:
        version: of the package.
        set_up_ms: of the tokenizer, once a model.
        compile_ms: of each constraint that could be compiled.
        mask_us: of each mask.
        num_refused: schemas that could not be compiled.
        num_broken: schemas under which some walk did not end in JSON that they accept.
    """

    version: str
    set_up_ms: float
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    num_schemas: int = 0
    num_refused: int = 0
    num_broken: int = 0

    def figures(self) -> Mapping[str, Any]:
        """For a report: medians and 99th percentiles in place of samples."""
        summed = {name: _percentiles(getattr(self, name)) for name in ("compile_ms", "mask_us")}
        return asdict(self) | summed | {"num_enforced": self.num_schemas - self.num_refused - self.num_broken}


def _percentiles(samples: Sequence[float]) -> dict[str, float]:
    median, high = np.percentile(samples, [50, 99])
    return {"p50": round(float(median), 3), "p99": round(float(high), 3), "max": round(max(samples), 3)}


def llguidance(tokenizer: Tokenizer) -> Compile:
    """As the services use it; nothing is cached."""
    compiler = ConstraintCompiler(tokenizer, tokenizer.vocab_size, max_cached=1)
    compiler.matcher(Constraint(ConstraintKind.REGEX, "a"))
    return compiler.matcher


def xgrammar(tokenizer: Tokenizer) -> Compile:
    """With the same separators, and nothing cached."""
    import xgrammar as library  # type: ignore[import-not-found,unused-ignore]

    spelled = [tokenizer.vocabulary.to_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
    info = library.TokenizerInfo(spelled, library.VocabType.RAW, stop_token_ids=list(tokenizer.eos_token_ids))
    compiler = library.GrammarCompiler(info, cache_enabled=False)

    def compile_one(constraint: Constraint) -> Matcher:
        if constraint.kind is ConstraintKind.REGEX:
            grammar = compiler.compile_regex(constraint.source)
        else:
            grammar = compiler.compile_json_schema(constraint.source, any_whitespace=False, strict_mode=False)
        return _XgrammarMatcher(library, library.GrammarMatcher(grammar), tokenizer.vocab_size)

    return compile_one


class XgrammarState(Protocol):
    """What is used of xgrammar's `GrammarMatcher`."""

    def fill_next_token_bitmask(self, bitmask: torch.Tensor) -> bool:
        """Writes the mask, int32 [1, vocab_size / 32]."""

    def accept_token(self, token_id: int) -> bool:
        """Whether the token could be taken."""


class _XgrammarMatcher:
    def __init__(self, library: ModuleType, matcher: XgrammarState, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self._bits = library.allocate_token_bitmask(1, vocab_size)

    def allowed(self) -> NDArray[np.bool_]:
        self._matcher.fill_next_token_bitmask(self._bits)
        octets = self._bits.numpy().view(np.uint8).reshape(-1)
        return np.unpackbits(octets, count=self._vocab_size, bitorder="little").view(np.bool_)

    def advance(self, token_id: int) -> None:
        if not self._matcher.accept_token(token_id):
            raise BenchmarkError(f"xgrammar allows token {token_id} and then refuses it")


LIBRARIES: Mapping[str, Library] = {"llguidance": llguidance, "xgrammar": xgrammar}


def walk(matcher: Matcher, eos_token_id: int, generator: random.Random, tally: Tally) -> list[int] | None:
    """Draws from all allowed tokens, EOS every other time that it is one; None if there is no end."""
    token_ids: list[int] = []
    for _ in range(MAX_STEPS):
        began = time.perf_counter()
        allowed = matcher.allowed()
        tally.mask_us.append(1e6 * (time.perf_counter() - began))
        may_end, allowed[eos_token_id] = bool(allowed[eos_token_id]), False
        others = np.flatnonzero(allowed)
        if may_end and (not len(others) or generator.random() < 0.5):
            return token_ids
        if not len(others):
            return None
        token_ids.append(int(generator.choice(others)))
        matcher.advance(token_ids[-1])
    return None


def _compile(compile_one: Compile, constraint: Constraint, tally: Tally, is_first: bool = True) -> Matcher | None:
    """None if the library refuses; only the first compilation is counted, as a library may keep what it compiled."""
    began = time.perf_counter()
    try:
        matcher = compile_one(constraint)
    except Exception:  # noqa: BLE001  (each library has its own)
        return None
    if is_first:
        tally.compile_ms.append(1e3 * (time.perf_counter() - began))
    return matcher


def _accepts(schema: Mapping[str, Any], text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def measure(name: str, tokenizer: Tokenizer, num_schemas: int, num_walks: int) -> Tally:
    """Runs one library over the patterns and the random schemas."""
    began = time.perf_counter()
    compile_one = LIBRARIES[name](tokenizer)
    tally = Tally(version(name), 1e3 * (time.perf_counter() - began), num_schemas=num_schemas)
    eos_token_id = tokenizer.eos_token_ids[0]
    for pattern in PATTERNS:
        matcher = _compile(compile_one, Constraint(ConstraintKind.REGEX, pattern), tally)
        if matcher is None or walk(matcher, eos_token_id, random.Random(0), tally) is None:  # noqa: S311
            raise BenchmarkError(f"{name} does not follow {pattern}")
    for schema in random_schemas(seed=5, count=num_schemas):
        _measure_schema(compile_one, schema, tokenizer, num_walks, tally)
    return tally


def _measure_schema(
    compile_one: Compile, schema: Mapping[str, Any], tokenizer: Tokenizer, num_walks: int, tally: Tally
) -> None:
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))
    holds = True
    for start in range(num_walks):
        matcher = _compile(compile_one, constraint, tally, is_first=start == 0)
        if matcher is None:
            tally.num_refused += 1
            return
        token_ids = walk(matcher, tokenizer.eos_token_ids[0], random.Random(start), tally)  # noqa: S311
        holds = holds and token_ids is not None and _accepts(schema, tokenizer.decode(token_ids, False))
    tally.num_broken += not holds


def as_table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """For people."""
    lines = [
        f"{'':20}{'set-up':>10}{'compile p50':>13}{'p99':>9}{'mask p50':>11}{'p99':>9}{'enforced':>12}{'refused':>9}"
    ]
    for name, found in figures.items():
        compiled, masks = found["compile_ms"], found["mask_us"]
        lines.append(
            f"{name + ' ' + found['version']:20}{found['set_up_ms']:7.0f} ms{compiled['p50']:10.2f} ms"
            f"{compiled['p99']:6.1f} ms{masks['p50']:8.0f} µs{masks['p99']:6.0f} µs"
            f"{found['num_enforced']:6}/{found['num_schemas']:<5}{found['num_refused']:9}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constraints", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="as in serving.yaml (default: %(default)s)")
    parser.add_argument("--schemas", type=int, default=200, help="(default: %(default)s)")
    parser.add_argument("--walks", type=int, default=3, help="under each schema (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)

    def run() -> int:
        tokenizer = Tokenizer.from_directory(resolve_model(options.model))
        figures = {}
        for name in LIBRARIES:
            if importlib.util.find_spec(name) is None:
                progress(f"{name} is not installed")
                continue
            progress(name)
            figures[name] = measure(name, tokenizer, options.schemas, options.walks).figures()
        sys.stdout.write((json.dumps(figures) if options.json else as_table(figures)) + "\n")
        return 0

    return run_to_end(run)


if __name__ == "__main__":
    sys.exit(main())
