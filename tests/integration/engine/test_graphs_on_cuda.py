"""CUDA graphs on a real GPU; skipped where there is none."""

from pathlib import Path

import pytest
import torch

from shared.config.resolve import ResolvedWalk
from shared.engine.pool import DevicePool
from shared.engine.runner import LoadedModel, Runner, load_model
from shared.engine.step import StepRow
from shared.ladder import Ladder
from tests.integration.engine.harness import random_tokens
from tests.integration.engine.stand_in_graphs import StandInRecorder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

WALK, RUNGS = "mixed", (8, 16, 32)


def make_runner(model: LoadedModel, recorder: StandInRecorder | None = None) -> tuple[Runner, DevicePool]:
    pool = DevicePool.allocate(model.kv_layout(16), 64, model.device)
    walk = ResolvedWalk("decode", WALK, None, Ladder(RUNGS))
    return Runner(model, pool, [walk], max_num_rows=40, recorder=recorder), pool


def rows_of(num_tokens: int, vocab_size: int) -> list[StepRow]:
    """Decode rows, and a chunk that takes half of the tokens."""
    tokens = random_tokens(num_tokens, vocab_size, seed=num_tokens)
    num_single = num_tokens // 2
    singles = [StepRow([token], 0, [1 + index], wants_logits=True) for index, token in enumerate(tokens[:num_single])]
    return [*singles, StepRow(tokens[num_single:], 0, [50, 51], wants_logits=True)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_graphs_give_the_bits_of_the_same_work_without_graphs(tiny_llama_dir: Path, dtype: str) -> None:
    model = load_model(tiny_llama_dir, dtype, device="cuda")
    (graphs, pool), (plain, plain_pool) = make_runner(model), make_runner(model, StandInRecorder())
    list(graphs.warm_up())
    assert pool.tensor[1:].abs().sum() == 0

    for num_tokens in (1, 7, 8, 9, 15, 16, 17, 31, 32, 33):
        rows = rows_of(num_tokens, model.config.vocab_size)
        assert torch.equal(graphs.run(WALK, rows), plain.run(WALK, rows)), num_tokens
        assert torch.equal(pool.tensor[1:], plain_pool.tensor[1:]), num_tokens


def test_logits_are_close_to_those_of_a_cpu(tiny_llama_dir: Path) -> None:
    on_gpu, on_cpu = (load_model(tiny_llama_dir, "float32", device=device) for device in ("cuda", "cpu"))
    rows = rows_of(20, on_cpu.config.vocab_size)

    logits, expected = (make_runner(model)[0].run(WALK, rows).cpu() for model in (on_gpu, on_cpu))

    assert torch.allclose(logits, expected, atol=1e-3)
