"""The runner over a tiny model: which buffers, what is counted, what is refused."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from shared.config.resolve import ResolvedWalk
from shared.engine.buffers import StepBuffers, StepInputs
from shared.engine.compute import StepComputer
from shared.engine.runner import LoadedModel, Runner, load_model
from shared.engine.stats import StepTotals
from shared.engine.step import BeforeCompute, StepRow
from shared.errors import ModelLoadError
from shared.kv.pool import KvPool
from shared.ladder import Ladder
from tests.tiny_models import VOCAB_SIZE, write_tiny_model

NUM_BLOCKS = 12


@pytest.fixture(scope="module")
def model(tiny_llama_dir: Path) -> LoadedModel:
    return load_model(tiny_llama_dir, "float32")


def make_runner(
    model: LoadedModel, *walks: ResolvedWalk, max_num_rows: int = 8, compute_padding: bool = False
) -> tuple[Runner, KvPool]:
    pool = KvPool.anonymous(model.kv_layout(32), NUM_BLOCKS, "epoch")
    return Runner(model, pool, walks, max_num_rows=max_num_rows, compute_padding=compute_padding), pool


def prompts(*rungs: int, budget: int | None = None) -> ResolvedWalk:
    return ResolvedWalk("prefill", "prefill_text", budget, Ladder(rungs))


def batches(*rungs: int) -> ResolvedWalk:
    return ResolvedWalk("decode", "decode", None, Ladder(rungs))


def counts(totals: StepTotals) -> tuple[int, int, int]:
    return totals.num_steps, totals.num_tokens, totals.num_padding_tokens


def row(num_tokens: int, first_block: int = 1, *, wants_logits: bool = True) -> StepRow:
    table = range(first_block, first_block + -(-num_tokens // 32))
    return StepRow(list(range(num_tokens)), 0, table, wants_logits)


def make_inputs() -> StepInputs:
    return StepInputs(
        num_tokens=8, num_rows=3, num_blocks_a_row=2, num_blocks=7, block_size=4, device=torch.device("cpu")
    )


def test_inputs_are_laid_out_row_by_row() -> None:
    inputs = make_inputs()
    rows = [
        StepRow([7, 8, 9], 3, [5, 2, 1], wants_logits=False),
        StepRow([6], 0, [3], wants_logits=True),
        StepRow([1, 2], 1, [4], wants_logits=True),
    ]

    step = inputs.load(rows)

    assert step.token_ids.tolist() == [7, 8, 9, 6, 1, 2]
    assert step.packed.positions.tolist() == [3, 4, 5, 0, 1, 2]
    assert step.packed.slots.tolist() == [5 * 4 + 3, 2 * 4 + 0, 2 * 4 + 1, 3 * 4, 4 * 4 + 1, 4 * 4 + 2]
    assert step.packed.row_starts.tolist() == [0, 3, 4, 6]
    assert step.packed.kv_lens.tolist() == [6, 1, 3]
    assert step.packed.block_table[0].tolist() == [5, 2]
    assert step.packed.block_table[1:, 0].tolist() == [3, 4]
    assert step.logit_tokens.tolist() == [3, 5]


def test_smaller_step_after_a_larger_one_leaves_nothing_behind() -> None:
    inputs = make_inputs()
    inputs.load([StepRow([1] * 5, 0, [1, 2], wants_logits=True), StepRow([2], 0, [3], wants_logits=True)])

    step = inputs.load([StepRow([9], 2, [5], wants_logits=False)])

    assert (step.packed.num_tokens, step.packed.num_rows) == (1, 1)
    assert step.token_ids.tolist() == [9]
    assert step.logit_tokens.tolist() == []


def test_table_that_stays_in_its_place_is_kept_and_one_that_moves_is_written() -> None:
    inputs = make_inputs()
    first, second = (1, 2), (3, 4)
    inputs.load([StepRow([1], 3, first, wants_logits=True), StepRow([1], 5, second, wants_logits=True)])

    step = inputs.load([StepRow([1], 4, first, wants_logits=True), StepRow([1], 6, second, wants_logits=True)])
    assert step.packed.slots.tolist() == [2 * 4 + 0, 4 * 4 + 2]
    assert step.packed.kv_lens.tolist() == [5, 7]

    step = inputs.load([StepRow([1], 7, second, wants_logits=True)])
    assert step.packed.slots.tolist() == [4 * 4 + 3]
    assert step.packed.block_table.tolist() == [[3, 4]]


def test_table_that_changes_in_place_is_written_again() -> None:
    inputs = make_inputs()
    table = [1, 2]
    inputs.load([StepRow([1], 3, table, wants_logits=True)])
    table[1] = 5

    step = inputs.load([StepRow([1], 4, table, wants_logits=True)])

    assert step.packed.slots.tolist() == [5 * 4]


@pytest.mark.parametrize("block", [-1, 7])
def test_block_outside_the_pool_is_never_computed_with(block: int) -> None:
    with pytest.raises(AssertionError, match="not in the pool"):
        make_inputs().load([StepRow([1], 0, (block,), wants_logits=True)])


def test_logits_are_of_the_rows_that_want_them_in_order(model: LoadedModel) -> None:
    runner, _ = make_runner(model, prompts(32))
    alone = [runner.run("prefill_text", [row(count, 1)])[0].clone() for count in (3, 5)]

    logits = runner.run("prefill_text", [row(3, 1), row(4, 2, wants_logits=False), row(5, 3)])

    assert logits.shape == (2, VOCAB_SIZE)
    assert logits.dtype == torch.float32
    assert torch.equal(logits[0], alone[0])
    assert torch.equal(logits[1], alone[1])
    assert not torch.equal(logits[0], logits[1])


def test_no_logits_where_no_row_wants_them(model: LoadedModel) -> None:
    runner, pool = make_runner(model, prompts(32))

    logits = runner.run("prefill_text", [row(3, wants_logits=False)])

    assert logits.shape == (0, VOCAB_SIZE)
    assert pool.tensor[1].abs().sum() > 0


def test_steps_are_counted_by_walk_with_their_padding(model: LoadedModel) -> None:
    runner, _ = make_runner(model, prompts(8, 32), batches(1, 4))
    list(runner.warm_up())
    assert runner.stats["prefill_text"].total.num_steps == 0

    runner.run("prefill_text", [row(5)])
    runner.run("prefill_text", [row(8), row(1, 2)])
    runner.run("decode", [row(1), row(1, 2), row(1, 3)])

    prefill, decode = runner.stats["prefill_text"], runner.stats["decode"]
    assert counts(prefill.total) == (2, 14, 3 + 23)
    assert {rung: counts(totals) for rung, totals in prefill.by_rung.items()} == {8: (1, 5, 3), 32: (1, 9, 23)}
    assert {rung: counts(totals) for rung, totals in decode.by_rung.items()} == {1: (0, 0, 0), 4: (1, 3, 1)}
    assert (prefill.over_top.num_steps, decode.over_top.num_steps) == (0, 0)
    assert prefill.total.seconds > prefill.by_rung[8].seconds > 0


def test_stats_do_not_change_under_the_hands_of_their_reader(model: LoadedModel) -> None:
    runner, _ = make_runner(model, prompts(8), batches(1))
    before = runner.stats

    runner.run("prefill_text", [row(5)])

    assert counts(before["prefill_text"].total) == (0, 0, 0)
    assert counts(runner.stats["prefill_text"].total) == (1, 5, 3)


@pytest.mark.parametrize(("num_tokens", "rung"), [(7, 8), (8, 8), (9, 16), (16, 16), (17, None)])
def test_a_step_runs_at_the_first_rung_that_holds_it(model: LoadedModel, num_tokens: int, rung: int | None) -> None:
    runner, _ = make_runner(model, prompts(8, 16))

    runner.run("prefill_text", [row(num_tokens)])

    stats = runner.stats["prefill_text"]
    assert [used for used, totals in stats.by_rung.items() if totals.num_steps] == ([rung] if rung else [])
    assert stats.over_top.num_steps == (rung is None)


def test_walks_share_the_capture_of_a_rung_but_not_its_counts(model: LoadedModel) -> None:
    mixed = ResolvedWalk("decode", "mixed", 16, Ladder((4, 16)))
    runner, _ = make_runner(model, batches(1, 4), mixed)

    assert [(timing.walk, timing.rung) for timing in runner.warm_up()] == [
        ("mixed", 16),
        ("decode", 4),
        ("mixed", 4),
        ("decode", 1),
    ]
    runner.run("mixed", [row(3)])

    assert runner.stats["mixed"].by_rung[4].num_steps == 1
    assert runner.stats["decode"].by_rung[4].num_steps == 0
    assert runner.num_prepared_rungs == {"decode": 2, "mixed": 2}


def test_a_step_above_its_walks_top_rung_runs_as_within_it(model: LoadedModel) -> None:
    """Also where another walk has buffers that would hold it."""
    expected = make_runner(model, prompts(16))[0].run("prefill_text", [row(10)]).clone()
    runner, _ = make_runner(model, batches(1), ResolvedWalk("decode", "mixed", None, Ladder((4,))), prompts(32))

    assert torch.equal(runner.run("mixed", [row(10)]), expected)
    assert counts(runner.stats["mixed"].over_top) == (1, 10, 0)


def test_step_above_the_top_rung_runs_unpadded_and_is_logged_ever_less_often(model: LoadedModel) -> None:
    runner, _ = make_runner(model, prompts(8, 16))
    expected = make_runner(model, prompts(64))[0].run("prefill_text", [row(40)])

    with capture_logs() as logs:
        for _ in range(9):
            logits = runner.run("prefill_text", [row(40)])

    assert torch.equal(logits, expected)
    stats = runner.stats["prefill_text"]
    assert counts(stats.over_top) == counts(stats.total) == (9, 360, 0)
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [entry["times"] for entry in warnings] == [1, 2, 4, 8]
    assert warnings[0]["num_tokens"] == 40
    assert warnings[0]["top_rung"] == 16


def test_walk_without_rungs_runs_all_steps_unpadded(model: LoadedModel) -> None:
    runner, _ = make_runner(model, prompts())

    assert list(runner.warm_up()) == []
    assert torch.equal(
        runner.run("prefill_text", [row(5)]), make_runner(model, prompts(8))[0].run("prefill_text", [row(5)])
    )


def test_warm_up_runs_the_largest_rung_first_and_never_more_than_the_budget(model: LoadedModel) -> None:
    runner, pool = make_runner(model, prompts(8, 32, 64, budget=50), batches(1, 4))

    timings = list(runner.warm_up())

    assert [(timing.walk, timing.rung, timing.num_tokens) for timing in timings] == [
        ("prefill_text", 64, 50),
        ("prefill_text", 32, 32),
        ("prefill_text", 8, 8),
        ("decode", 4, 4),
        ("decode", 1, 1),
    ]
    assert all(timing.seconds > 0 for timing in timings)
    assert pool.tensor[1:].abs().sum() == 0


def test_warm_up_stays_within_the_rows_that_can_run(model: LoadedModel) -> None:
    runner, _ = make_runner(model, batches(4, 16), max_num_rows=10)

    assert [timing.num_tokens for timing in runner.warm_up()] == [10, 4]


def test_warm_up_of_a_rung_longer_than_the_context(tmp_path: Path) -> None:
    short = load_model(write_tiny_model(tmp_path), "float32", max_model_len=48)
    runner, pool = make_runner(short, prompts(100))

    assert [timing.num_tokens for timing in runner.warm_up()] == [100]
    assert pool.tensor[1:].abs().sum() == 0


def test_warm_up_runs_no_more_than_the_largest_tiles_take(model: LoadedModel) -> None:
    runner, _ = make_runner(model, prompts(64, 512, 1024, budget=2048))

    assert [timing.num_tokens for timing in runner.warm_up()] == [128, 128, 64]


@pytest.mark.parametrize("budget", [1, 2])
def test_no_more_is_dispatched_than_the_budget_though_more_rows_may_run(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    dispatched, compute = [], StepComputer.compute

    def recording_compute(
        self: StepComputer, buffers: StepBuffers, rows: Sequence[StepRow], before_compute: BeforeCompute
    ) -> torch.Tensor:
        dispatched.append(sum(len(row.token_ids) for row in rows))
        return compute(self, buffers, rows, before_compute)

    monkeypatch.setattr(StepComputer, "compute", recording_compute)
    runner, _ = make_runner(model, prompts(4, budget=budget), max_num_rows=4)

    list(runner.warm_up())
    runner.run("prefill_text", [row(1, index + 1) for index in range(budget)])

    assert dispatched == [budget, budget]


def test_padding_that_is_computed_changes_nothing(model: LoadedModel) -> None:
    plain, plain_pool = make_runner(model, prompts(32, 64))
    padded, padded_pool = make_runner(model, prompts(32, 64), compute_padding=True)
    rows = [row(3, 1), row(40, 2)]

    expected = plain.run("prefill_text", rows)
    logits = padded.run("prefill_text", rows)

    assert torch.equal(logits, expected)
    assert torch.equal(padded_pool.tensor[1:], plain_pool.tensor[1:])
    # The 21 tokens of padding were run: they wrote to the scratch block.
    assert plain_pool.tensor[0].abs().sum() == 0
    assert padded_pool.tensor[0].abs().sum() > 0
    assert padded.stats["prefill_text"].total.num_padding_tokens == 21


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row(1)] * 9,
        [StepRow([], 0, [1], wants_logits=True)],
        [StepRow([1], -1, [1], wants_logits=True)],
        [StepRow([1], 32, [1], wants_logits=True)],
        [StepRow([1], 1024, range(1, 40), wants_logits=True)],
        [StepRow([1], 0, [NUM_BLOCKS], wants_logits=True)],
        [StepRow([1], 0, [-1], wants_logits=True)],
    ],
    ids=["none", "too many", "empty", "negative", "too few blocks", "too long", "no such block", "negative block"],
)
def test_rows_outside_the_limits_are_a_bug_of_the_caller(model: LoadedModel, rows: list[StepRow]) -> None:
    runner, _ = make_runner(model, prompts(32))

    with pytest.raises(AssertionError):
        runner.run("prefill_text", rows)


def test_pool_of_another_layout_is_a_bug_of_the_caller(model: LoadedModel, tmp_path: Path) -> None:
    other = load_model(write_tiny_model(tmp_path, "qwen2"), "float32")
    pool = KvPool.anonymous(other.kv_layout(32), NUM_BLOCKS, "epoch")

    with pytest.raises(AssertionError):
        Runner(model, pool, [prompts(32)])


def test_layout_says_what_the_ops_write(model: LoadedModel) -> None:
    layout = model.kv_layout(16)

    assert (layout.name, layout.dtype, layout.block_size) == ("token_major", "float32", 16)
    assert layout.block_shape == (2, 2, 2, 16 * 16)


def test_unknown_dtype_is_refused(tiny_llama_dir: Path) -> None:
    with pytest.raises(ModelLoadError, match="float16"):
        load_model(tiny_llama_dir, "float16")


def test_weights_that_nothing_uses_are_refused(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, "qwen3")
    config = (directory / "config.json").read_text()
    (directory / "config.json").write_text(config.replace('"qwen3"', '"mistral"'))

    with pytest.raises(ModelLoadError, match=r"4 weights are not known here, such as .*k_norm"):
        load_model(directory, "float32")
