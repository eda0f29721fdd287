"""The LM head over any tokens of a step: the same bits as where each is the last of its row."""

import weakref
from pathlib import Path

import pytest
import torch

from shared.config.resolve import ResolvedWalk
from shared.engine.buffers import StepBuffers
from shared.engine.captures import Captures
from shared.engine.runner import LoadedModel, Runner, load_model
from shared.engine.step import StepRow
from shared.kv.pool import KvPool
from shared.ladder import Ladder
from tests.integration.engine.harness import BLOCK_SIZE, random_tokens, table_for
from tests.integration.engine.stand_in_graphs import StandInRecorder
from tests.tiny_models import write_tiny_model

WALK = "prefill_text"
RUNGS = (16, 32)
NUM_TOKENS = 40


@pytest.fixture(scope="module", params=["torch", "native"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"), head_dim=32)
    return load_model(path, "auto", kernels=request.param, block_size=BLOCK_SIZE)


def runner_of(model: LoadedModel, variant: str = "skipped", max_num_rows: int = 64) -> Runner:
    pool = KvPool.anonymous(model.kv_layout(BLOCK_SIZE), 16, "epoch")
    walks = [ResolvedWalk("node", WALK, None, Ladder(RUNGS))]
    return Runner(
        model,
        pool,
        walks,
        max_num_rows=max_num_rows,
        compute_padding=variant == "computed",
        recorder=StandInRecorder() if variant == "graphs" else None,
    )


def token_by_token(model: LoadedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits of each token, [len(token_ids), vocab]."""
    runner, table = runner_of(model), table_for(len(token_ids))
    rows = [StepRow([token_id], place, table, wants_logits=True) for place, token_id in enumerate(token_ids)]
    return torch.stack([runner.run(WALK, [row])[0].clone() for row in rows])


@pytest.mark.parametrize("variant", ["skipped", "computed", "graphs"])
@pytest.mark.parametrize("chunk_lens", [(40,), (7, 25, 8), (16, 16, 8), (33, 1, 6)], ids=str)
def test_whatever_the_chunks_and_the_padding(model: LoadedModel, chunk_lens: tuple[int, ...], variant: str) -> None:
    token_ids = random_tokens(NUM_TOKENS, model.config.vocab_size, seed=1)
    expected = token_by_token(model, token_ids)
    runner, table, start = runner_of(model, variant), table_for(NUM_TOKENS), 0
    for length in chunk_lens:
        runner.run(WALK, [StepRow(token_ids[start : start + length], start, table, wants_logits=False)])
        for first in range(0, length, 5):
            end = min(first + 5, length)
            assert torch.equal(runner.logits_of(first, end), expected[start + first : start + end])
        start += length


def test_tokens_of_a_step_are_counted_over_its_rows(model: LoadedModel) -> None:
    one = random_tokens(5, model.config.vocab_size, seed=2)
    other = random_tokens(9, model.config.vocab_size, seed=3)
    runner = runner_of(model)
    rows = [StepRow(one, 0, [1], wants_logits=True), StepRow(other, 0, [2], wants_logits=True)]
    last = runner.run(WALK, rows).clone()
    logits = runner.logits_of(0, 14).clone()
    assert torch.equal(logits[[4, 13]], last)
    assert torch.equal(logits[5:], token_by_token(model, other))


def test_no_more_than_the_head_has_room_for(model: LoadedModel) -> None:
    runner = runner_of(model, max_num_rows=4)
    assert runner.max_num_logits == 4
    runner.run(WALK, [StepRow([1] * 8, 0, [1], wants_logits=False)])
    assert runner.logits_of(4, 8).shape == (4, model.config.vocab_size)
    with pytest.raises(AssertionError):
        runner.logits_of(0, 5)


def test_steps_above_the_top_rung_have_one_set_of_buffers_at_a_time(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[StepBuffers]] = []
    num_alive: list[int] = []
    allocate = Captures._allocate

    def noted(captures: Captures, num_tokens: int) -> StepBuffers:
        num_alive.append(sum(buffers() is not None for buffers in made))
        buffers = allocate(captures, num_tokens)
        made.append(weakref.ref(buffers))
        return buffers

    runner = runner_of(model)
    monkeypatch.setattr(Captures, "_allocate", noted)
    row = StepRow([1] * NUM_TOKENS, 0, table_for(NUM_TOKENS), wants_logits=False)
    for _ in range(3):
        runner.run(WALK, [row])
        assert runner.logits_of(NUM_TOKENS - 1, NUM_TOKENS).isfinite().all()
    assert num_alive == [0, 0, 0]
