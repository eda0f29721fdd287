"""A suggested ladder beside today's and powers of two: question and answer, as values. Nothing is read or printed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.config.resolve import LOWEST_TOKEN_RUNG, ResolvedServing, ResolvedWalk
from shared.ladder import doubling_rungs, trim
from shared.ladder.steps import StepCounts
from shared.ladder.suggest import LadderCost, cost_of, suggest, suggest_each
from shared.ladder.trace import Trace

SUGGESTED, TODAY, DOUBLING = "suggested", "today", f"powers of two from {LOWEST_TOKEN_RUNG}"
_LEAST_CURVE_LEN, _MOST_CURVE_LEN = 16, 64


@dataclass(frozen=True)
class Request:
    """What is asked.

    Attributes:
        serving: the shared config.
        trace: lengths of prompts; `-` is standard input.
        column: where they stand; None: where they usually do.
        node: whose ladder.
        walk: which one.
        budget: most tokens of a step; None: the walk's, or the longest prompt where that is null.
        max_num_rungs: most rungs of the ladder.
        alignment: rungs are multiples of it.
    """

    serving: Path
    trace: Path
    column: str | None
    node: str
    walk: str
    budget: int | None
    max_num_rungs: int
    alignment: int

    @property
    def key(self) -> tuple[str, str, str]:
        """Where the config has the ladder."""
        return ("prefill_token_buckets", self.node, self.walk)


@dataclass(frozen=True)
class Comparison:
    """The answer.

    Attributes:
        budget: where prompts were cut.
        steps: what they were cut into.
        ladders: name → cost; the suggested one, today's, and powers of two.
        curve: the best ladders of 1, 2, … rungs: as many as are asked for, but 16 at least and 64 at most; fewer where
            more save nothing.
        notes: what a reader should know, in sentences.
    """

    budget: int
    steps: StepCounts
    ladders: Mapping[str, LadderCost]
    curve: tuple[LadderCost, ...]
    notes: tuple[str, ...]

    @property
    def suggested(self) -> LadderCost:
        """The ladder with the least padding."""
        return self.ladders[SUGGESTED]

    @property
    def today(self) -> LadderCost:
        """The ladder that the config has, trimmed to the budget."""
        return self.ladders[TODAY]


def compare(request: Request, resolved: ResolvedServing, trace: Trace) -> Comparison:
    """Cuts the prompts into steps and costs the ladders over them."""
    walk = resolved.walk(request.node, request.walk)
    budget = request.budget or walk.step_budget or trace.longest
    steps = StepCounts.of_prompts(trace.prompts, budget)
    curve_len = min(max(request.max_num_rungs, _LEAST_CURVE_LEN), _MOST_CURVE_LEN)
    ladders = {
        SUGGESTED: suggest(steps, request.max_num_rungs, request.alignment),
        TODAY: cost_of(_todays_rungs(walk, request.budget), steps),
        DOUBLING: cost_of(doubling_rungs(LOWEST_TOKEN_RUNG, budget), steps),
    }
    notes = (*_notes_on_steps(request, resolved, walk, trace, budget), *_notes_on_ladders(request, ladders))
    curve = tuple(suggest_each(steps, curve_len, request.alignment))
    return Comparison(budget, steps, ladders, curve, notes)


def _todays_rungs(walk: ResolvedWalk, budget: int | None) -> tuple[int, ...]:
    """As the config trims them, or as it would with another budget."""
    if budget is None:
        return walk.ladder.rungs
    return trim((*walk.ladder.rungs, *walk.ladder.dropped), budget).rungs


def _notes_on_steps(
    request: Request, resolved: ResolvedServing, walk: ResolvedWalk, trace: Trace, budget: int
) -> Iterator[str]:
    if trace.num_empty_rows:
        yield f"rows of 0 tokens, left out as they make no step: {trace.num_empty_rows}"
    if request.budget is None and walk.step_budget is None:
        yield f"the budget is null (prompts are not chunked), so {budget}, the longest prompt, is taken for it"
    if request.budget is not None and request.budget != walk.step_budget:
        config_budget = "null" if walk.step_budget is None else walk.step_budget
        yield f"the budget of {request.node}.{request.walk} in {request.serving} is {config_budget}, not {budget}"
    threshold = resolved.long_prefill_token_threshold
    if 0 < threshold < budget:
        yield (
            f"long_prefill_token_threshold is {threshold}: no prompt gets more of a step, so a step of one prompt is "
            f"cut there; --budget {threshold} tells of those"
        )
    if request.walk == "mixed":
        yield "steps of mixed hold decode rows too, which a trace of prompts does not show"


def _notes_on_ladders(request: Request, ladders: Mapping[str, LadderCost]) -> Iterator[str]:
    suggested, today = ladders[SUGGESTED], ladders[TODAY]
    if len(suggested.rungs) < request.max_num_rungs:
        yield f"{len(suggested.rungs)} rungs are enough: more would save no padding"
    if today.num_steps_above:
        share, top = today.num_steps_above / today.num_steps, today.rungs[-1]
        yield f"{share:.1%} of the steps are above today's top rung {top}: they run unpadded, without a capture"
