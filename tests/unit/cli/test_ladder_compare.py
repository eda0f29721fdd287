"""A suggested ladder beside others: budgets, what today's is, notes."""

from pathlib import Path
from typing import Any

import pytest

from cli.ladder_compare import Comparison, Request, compare
from shared.config.resolve import resolve
from shared.config.serving import ServingConfig
from shared.ladder.trace import Trace

PROMPTS = {30: 2, 64: 1, 100: 1, 250: 1}


def compared(
    config: dict[str, Any] | None = None,
    *,
    node: str = "prefill",
    walk: str = "prefill_text",
    budget: int | None = None,
    max_num_rungs: int = 2,
    alignment: int = 1,
    prompts: dict[int, int] | None = None,
    num_empty_rows: int = 0,
) -> Comparison:
    request = Request(Path("s.yaml"), Path("t.csv"), None, node, walk, budget, max_num_rungs, alignment)
    trace = Trace(None, prompts or PROMPTS, num_empty_rows)
    return compare(request, resolve(ServingConfig.model_validate(config or {})), trace)


def test_three_ladders_over_the_same_steps() -> None:
    comparison = compared(
        {
            "max_batch_tokens": {"prefill": 100},
            "prefill_token_buckets": {"prefill": {"prefill_text": [50, 200, 400]}},
        }
    )
    assert comparison.budget == 100
    assert comparison.steps.counts == {30: 2, 50: 1, 64: 1, 100: 3}
    costs = {name: (cost.rungs, cost.num_padding_tokens) for name, cost in comparison.ladders.items()}
    assert costs == {
        "suggested": ((50, 100), 2 * 20 + 36),
        "today": ((50, 200), 2 * 20 + 136 + 3 * 100),
        "powers of two from 32": ((32, 64, 128), 2 * 2 + 14 + 3 * 28),
    }
    assert comparison.suggested.rungs == (50, 100)
    assert comparison.today.rungs == (50, 200)
    assert [cost.rungs for cost in comparison.curve] == [(100,), (50, 100), (30, 64, 100), (30, 50, 64, 100)]
    assert comparison.notes == ()


def test_the_curve_goes_on_to_what_is_asked_for_but_not_without_end() -> None:
    prompts = dict.fromkeys(range(1, 101), 1)
    for max_num_rungs, curve_len in ((2, 16), (25, 25), (80, 64)):
        comparison = compared(prompts=prompts, budget=100, max_num_rungs=max_num_rungs)
        assert len(comparison.suggested.rungs) == max_num_rungs
        assert [len(cost.rungs) for cost in comparison.curve] == list(range(1, curve_len + 1))


def test_rungs_are_aligned_and_the_top_one_holds_the_budget() -> None:
    assert compared({"max_batch_tokens": {"prefill": 100}}, alignment=48).suggested.rungs == (48, 144)


def test_another_budget_than_the_configs_is_noted_and_trims_todays_ladder() -> None:
    comparison = compared({"max_batch_tokens": {"prefill": 100}}, budget=40)
    assert comparison.budget == 40
    assert comparison.today.rungs == (32, 64)
    assert comparison.notes == ("the budget of prefill.prefill_text in s.yaml is 100, not 40",)


def test_todays_ladder_with_a_larger_budget_has_the_rungs_that_were_dropped() -> None:
    config = {"max_batch_tokens": {"prefill": 32}, "prefill_token_buckets": {"prefill": {"prefill_text": [32, 64]}}}
    comparison = compared(config, budget=100)
    assert comparison.today.rungs == (32, 64)
    assert (
        comparison.notes[1] == "42.9% of the steps are above today's top rung 64: they run unpadded, without a capture"
    )


def test_without_a_budget_the_longest_prompt_is_one() -> None:
    config = {"max_batch_tokens": {"prefill": {"prefill_text": None}}}
    comparison = compared(config)
    assert comparison.budget == 250
    assert comparison.steps.counts == PROMPTS
    assert comparison.notes == (
        "the budget is null (prompts are not chunked), so 250, the longest prompt, is taken for it",
    )
    assert compared(config, budget=100).notes == ("the budget of prefill.prefill_text in s.yaml is null, not 100",)


@pytest.mark.parametrize(("walk", "today"), [("mixed", (32, 64)), ("prefill_text", (60,))])
def test_walks_of_the_decode_node_have_mixeds_budget(walk: str, today: tuple[int, ...]) -> None:
    config = {"max_batch_tokens": {"decode": 60}, "prefill_token_buckets": {"decode": {"prefill_text": [60]}}}
    comparison = compared(config, node="decode", walk=walk)
    assert (comparison.budget, comparison.today.rungs) == (60, today)


def test_mixed_steps_hold_more_than_a_trace_shows() -> None:
    assert compared(node="decode", walk="mixed").notes == (
        "steps of mixed hold decode rows too, which a trace of prompts does not show",
    )


def test_rows_without_tokens_are_noted() -> None:
    assert compared(num_empty_rows=3).notes == ("rows of 0 tokens, left out as they make no step: 3",)


def test_a_threshold_below_the_budget_is_noted() -> None:
    assert compared({"long_prefill_token_threshold": 64}).notes == (
        (
            "long_prefill_token_threshold is 64: no prompt gets more of a step, so a step of one prompt is cut there; "
            "--budget 64 tells of those"
        ),
    )
    assert compared({"long_prefill_token_threshold": 2048}).notes == ()


def test_more_rungs_than_save_padding_are_noted() -> None:
    comparison = compared(max_num_rungs=9)
    assert comparison.suggested.rungs == (30, 64, 100, 250, 2048)
    assert comparison.notes == ("5 rungs are enough: more would save no padding",)
