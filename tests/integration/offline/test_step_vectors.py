"""The planning vectors of the design on the real engine: which slices ran, at which positions, what came of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from decode_service.offline import OfflineEngine, OfflineResult, generate_batch
from shared.worker.engine import token_walk
from shared.worker.sequence import Sequence as WorkerSequence
from shared.worker.stepper import Stepper
from shared.worker.walks import WalkChoice
from tests.integration.offline.recording import RecordedSlice, random_prompts, recorded, request, serving_of
from tests.tiny_models import write_tiny_model

ONE_AT_A_TIME = {"max_partial_prefills": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096)


def results_of(engine: OfflineEngine, prompts: Sequence[Sequence[int]], max_tokens: int = 1) -> list[OfflineResult]:
    outcomes = generate_batch(engine, [request(prompt, max_tokens) for prompt in prompts], keep_logits=True)
    assert all(isinstance(outcome, OfflineResult) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, OfflineResult)]


def whole_slices(prompt: Sequence[int], chunk_len: int) -> list[RecordedSlice]:
    """A prompt in chunks of one length, the last one shorter."""
    return [
        RecordedSlice(tuple(prompt[start : start + chunk_len]), start, min(start + chunk_len, len(prompt)))
        for start in range(0, len(prompt), chunk_len)
    ]


def test_sixteen_long_prompts_make_224_steps_one_at_a_time_and_14_when_they_share(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    prompts = random_prompts([3338] * 16)
    rungs = {"prefill_token_buckets": {"prefill": {"prefill_text": [256, 1024, 4096]}}, "kv": {"block_size": 32}}
    alone = serving_of(model, 4096, long_prefill_token_threshold=256, **ONE_AT_A_TIME, **rungs)
    with recorded(monkeypatch, alone, num_kv_blocks=16 * 105 + 1) as (engine, recording):
        first = results_of(engine, prompts)
        assert len(recording.sizes("prefill_text")) == 224
        assert all(len(sizes) == 1 for sizes in recording.sizes("prefill_text"))
        assert max(recording.dispatched) == 256, "warm-up included"
        for prompt in prompts:
            assert recording.slices(prompt) == whole_slices(prompt, 256)
        # In turns: the first chunk of each, then the second of each.
        assert [rows[0].start for _, rows in recording.steps[:32]] == [0] * 16 + [256] * 16
    with recorded(monkeypatch, serving_of(model, 4096, **rungs), num_kv_blocks=16 * 105 + 1) as (engine, recording):
        shared = results_of(engine, prompts)
        assert len(recording.sizes("prefill_text")) == 14
        assert [sum(sizes) for sizes in recording.sizes("prefill_text")] == [4096] * 13 + [16 * 3338 - 13 * 4096]
        assert recording.sizes("prefill_text")[0] == [256] * 16, "equal shares"
        for prompt in prompts:
            slices = recording.slices(prompt)
            assert [token for each in slices for token in each.token_ids] == prompt
            assert [each.start for each in slices] == [0, *(each.kv_len for each in slices[:-1])]
            assert slices[-1].kv_len == 3338
    for one, other in zip(first, shared, strict=True):
        assert one.token_ids == other.token_ids
        assert one.final_logits is not None
        assert other.final_logits is not None
        assert torch.equal(one.final_logits, other.final_logits)


def test_cut_prompts_rotate(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    """r0[0:3] r1[0:3] r0[3:5] r1[3:6] r1[6:7]"""
    prompts = random_prompts([5, 7])
    serving = serving_of(model, 3, long_prefill_token_threshold=3, **ONE_AT_A_TIME)
    with recorded(monkeypatch, serving) as (engine, recording):
        results_of(engine, prompts)
        assert recording.slices(prompts[0]) == [
            RecordedSlice(tuple(prompts[0][0:3]), 0, 3),
            RecordedSlice(tuple(prompts[0][3:5]), 3, 5),
        ]
        assert recording.slices(prompts[1]) == [
            RecordedSlice(tuple(prompts[1][0:3]), 0, 3),
            RecordedSlice(tuple(prompts[1][3:6]), 3, 6),
            RecordedSlice(tuple(prompts[1][6:7]), 6, 7),
        ]
        order = [(row.start, row.kv_len) for _, rows in recording.steps for row in rows]
        assert order == [(0, 3), (0, 3), (3, 5), (3, 6), (6, 7)]


@pytest.mark.parametrize(
    ("lengths", "budget", "first_step"),
    [
        ([50, 50], 10, [5, 5]),
        ([40, 50, 60], 10, [4, 3, 3]),
        ([100], None, [100]),
        ([100, 100], None, [100, 100]),
        ([3, 7], 10, [3, 7]),
        ([1, 100], 10, [1, 9]),
    ],
)
def test_the_first_step_is_shared(
    monkeypatch: pytest.MonkeyPatch, model: Path, lengths: list[int], budget: int | None, first_step: list[int]
) -> None:
    with recorded(monkeypatch, serving_of(model, budget)) as (engine, recording):
        results_of(engine, random_prompts(lengths))
        assert recording.sizes("prefill_text")[0] == first_step


def test_decode_rows_go_whole_beside_a_prompt(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    """[d0, p0, d1] needing [1, 100, 1] at a budget of 10: 1, 8, 1."""
    serving = serving_of(model, 10, prefill_token_buckets={"prefill": {"prefill_text": [10]}})
    with recorded(monkeypatch, serving) as (engine, recording):
        walk = token_walk(engine.resolved, engine.resolved.offline_walk("prefill", "prefill_text"))
        stepper = Stepper(engine.engine.runner, WalkChoice(walk, mixed=walk, decode="decode"))
        d0, p0, d1 = random_prompts([2, 100, 2])
        for number, (prompt, num_computed) in enumerate([(d0, 1), (p0, 0), (d1, 1)]):
            table = tuple(range(1 + number * 13, 14 + number * 13))
            stepper.add(_sequence(str(number), prompt, num_computed, table))
        stepper.step()
        ((_, rows),) = recording.steps
        assert [len(row.token_ids) for row in rows] == [1, 8, 1]
        assert [(row.start, row.kv_len) for row in rows] == [(1, 2), (0, 8), (1, 2)]


def _sequence(name: str, prompt: list[int], num_computed: int, table: tuple[int, ...]) -> WorkerSequence:
    """A sequence; one that has computed all but its last token is a decode row."""
    asked = request(prompt, max_tokens=2)
    return WorkerSequence(
        request_id=name,
        token_ids=list(prompt),
        prompt_len=num_computed or len(prompt),
        num_computed_tokens=num_computed,
        block_table=table,
        sampling=asked.sampling,
        stopping=asked.stopping,
        eos_token_ids=(),
        max_total_len=asked.max_total_len,
    )


def test_input_within_the_budget_is_one_prefill_step(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    prompts = random_prompts([10, 1, 30, 23])
    with recorded(monkeypatch, serving_of(model, 64)) as (engine, recording):
        results = results_of(engine, prompts, max_tokens=3)
        assert recording.sizes("prefill_text") == [[10, 1, 30, 23]]
        assert recording.sizes("decode") == [[1, 1, 1, 1]] * 2
        assert [len(result.token_ids) for result in results] == [3, 3, 3, 3]
        tables = [row.block_table for row in recording.steps[0][1]]
        assert [row.block_table for row in recording.steps[-1][1]] == tables, "one allocation a request"


def test_a_budget_below_the_rows_is_kept_at_warm_up_and_after(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    """Four rows, a budget of two."""
    serving = serving_of(model, 2, max_num_seqs={"prefill": 4, "decode": 2})
    with recorded(monkeypatch, serving) as (engine, recording):
        assert recording.dispatched, "warm-up ran"
        results_of(engine, random_prompts([3, 3, 3, 3]), max_tokens=2)
        assert max(recording.dispatched) == 2
        assert max(sum(sizes) for sizes in recording.sizes("prefill_text")) == 2


def test_logits_are_those_of_each_prompts_last_token(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    prompts = random_prompts([7, 20, 33])
    with recorded(monkeypatch, serving_of(model, 8)) as (engine, _):
        chunked = results_of(engine, prompts)
    with recorded(monkeypatch, serving_of(model, 64)) as (engine, _):
        for prompt, result in zip(prompts, chunked, strict=True):
            (alone,) = results_of(engine, [prompt])
            assert alone.final_logits is not None
            assert result.final_logits is not None
            assert torch.equal(alone.final_logits, result.final_logits)
            assert result.token_ids == (int(alone.final_logits.argmax()),)
