"""Steps at the edges of rungs give the same bits whether padding is skipped, computed, or computed by graphs.

The pool holds noise, so that rows may begin at any position: what is computed there matters only as far as it is equal.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import pytest
import torch

from shared.config.resolve import ResolvedWalk
from shared.engine.runner import LoadedModel, Runner, load_model
from shared.engine.step import StepRow
from shared.kv.pool import KvPool
from shared.ladder import Ladder
from tests.integration.engine.harness import random_tokens
from tests.integration.engine.stand_in_graphs import StandInRecorder
from tests.tiny_models import write_tiny_model

RUNGS = (8, 16, 32)
ABOVE_TOP = 37
SIZES = sorted({rung + offset for rung in RUNGS for offset in (-1, 0, 1)} | {1, ABOVE_TOP})
WALKS = ("prefill_text", "decode", "mixed")
SMOLLM2 = "smollm2"
FAMILIES = [(family, dtype) for family in ("llama", "mistral", "qwen2", "qwen3") for dtype in ("float32", "bfloat16")]
BLOCK_SIZE, BLOCKS_A_ROW, MAX_NUM_ROWS = 16, 3, 40
NUM_BLOCKS = 1 + MAX_NUM_ROWS * BLOCKS_A_ROW
VARIANTS = ("skipped", "computed", "graphs")


@pytest.fixture(scope="module", params=[*FAMILIES, (SMOLLM2, "float32")], ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    family, dtype = request.param
    if family == SMOLLM2:
        return load_model(request.getfixturevalue("smollm2_dir"), dtype)
    return load_model(write_tiny_model(tmp_path_factory.mktemp("tiny"), family), dtype)


@pytest.fixture(scope="module")
def noise(model: LoadedModel) -> torch.Tensor:
    shape = (NUM_BLOCKS, *model.kv_layout(BLOCK_SIZE).block_shape)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(model.ops.weight_dtype)


class Bench:
    """One runner, and what a step leaves of a pool of noise."""

    def __init__(self, model: LoadedModel, noise: torch.Tensor, rungs: Sequence[int], variant: str = "skipped") -> None:
        self.pool = KvPool.anonymous(model.kv_layout(BLOCK_SIZE), NUM_BLOCKS, "epoch")
        self.recorder = StandInRecorder()
        self._noise = noise
        walks = [ResolvedWalk("node", name, None, Ladder(tuple(rungs))) for name in WALKS]
        self.runner = Runner(
            model,
            self.pool,
            walks,
            max_num_rows=MAX_NUM_ROWS,
            compute_padding=variant == "computed",
            recorder=self.recorder if variant == "graphs" else None,
        )

    def run(self, walk: str, rows: Sequence[StepRow]) -> tuple[torch.Tensor, torch.Tensor]:
        """One step.

        Returns:
            The logits, and the pool after the step.
        """
        self.pool.tensor.copy_(self._noise)
        logits = self.runner.run(walk, rows)
        return logits.clone(), self.pool.tensor


def rows_of(walk: str, num_tokens: int, vocab_size: int) -> list[StepRow]:
    """Rows of a walk with so many tokens in all; rows begin within blocks, at their edges and over several of them."""
    tokens = random_tokens(num_tokens, vocab_size, seed=num_tokens)
    lens = {"decode": [1] * num_tokens, "prefill_text": halves(num_tokens), "mixed": [1] * (num_tokens // 2)}[walk]
    if walk == "mixed":
        lens.append(num_tokens - len(lens))
    rows = []
    for index, (length, start) in enumerate(zip(lens, starts(walk), strict=False)):
        table = range(1 + index * BLOCKS_A_ROW, 1 + (index + 1) * BLOCKS_A_ROW)
        rows.append(StepRow(tokens[:length], start, table, wants_logits=walk != "prefill_text" or index > 0))
        tokens = tokens[length:]
    return rows


def halves(num_tokens: int) -> list[int]:
    return [length for length in (num_tokens // 2, num_tokens - num_tokens // 2) if length]


def starts(walk: str) -> Iterator[int]:
    return cycle([0, 3] if walk == "prefill_text" else [0, 5, 15, 16, 17, 26])


@pytest.mark.parametrize("walk", WALKS)
def test_edges_of_rungs_give_the_bits_of_an_unpadded_step(model: LoadedModel, noise: torch.Tensor, walk: str) -> None:
    unpadded = Bench(model, noise, ())
    benches = {variant: Bench(model, noise, RUNGS, variant) for variant in VARIANTS}

    for num_tokens in SIZES:
        rows = rows_of(walk, num_tokens, model.config.vocab_size)
        assert sum(len(row.token_ids) for row in rows) == num_tokens
        expected_logits, expected_pool = unpadded.run(walk, rows)
        has_padding = num_tokens < RUNGS[-1] and num_tokens not in RUNGS
        for variant, bench in benches.items():
            logits, pool = bench.run(walk, rows)
            assert torch.equal(logits, expected_logits), (num_tokens, variant)
            assert torch.equal(pool[1:], expected_pool[1:]), (num_tokens, variant)
            assert torch.equal(pool[0], noise[0]) == (variant == "skipped" or not has_padding), (num_tokens, variant)

    for bench in benches.values():
        stats = bench.runner.stats[walk]
        assert [rung for rung, totals in stats.by_rung.items() if totals.num_steps] == list(RUNGS)
        assert stats.over_top.num_tokens == RUNGS[-1] + 1 + ABOVE_TOP


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_beside_the_most_rows_that_may_run(tiny_llama_dir: Path, variant: str) -> None:
    """Padding makes more rows than the runner was made for."""
    model = load_model(tiny_llama_dir, "float32")
    noise = torch.zeros(NUM_BLOCKS, *model.kv_layout(BLOCK_SIZE).block_shape)
    rows = rows_of("decode", MAX_NUM_ROWS, model.config.vocab_size)
    expected = Bench(model, noise, ()).run("decode", rows)[0]

    logits = Bench(model, noise, [8, 64], variant).run("decode", rows)[0]

    assert torch.equal(logits, expected)


def test_a_graph_is_recorded_once_between_any_two_attentions(tiny_llama_dir: Path) -> None:
    model = load_model(tiny_llama_dir, "float32")  # two layers: before the first attention, between, after the second
    noise = torch.zeros(NUM_BLOCKS, *model.kv_layout(BLOCK_SIZE).block_shape)
    bench = Bench(model, noise, [4, 8], "graphs")
    replays, others = ["replay 0", "replay 1", "replay 2"], ["replay 3", "replay 4", "replay 5"]

    bench.run("mixed", rows_of("mixed", 7, model.config.vocab_size))
    bench.run("mixed", rows_of("mixed", 5, model.config.vocab_size))
    assert bench.recorder.log == ["warm up", "record 0", "record 1", "record 2", *replays, *replays]

    bench.recorder.log.clear()
    bench.run("decode", rows_of("decode", 4, model.config.vocab_size))
    bench.run("decode", rows_of("decode", 8, model.config.vocab_size))
    bench.run("decode", rows_of("decode", 9, model.config.vocab_size))
    assert bench.recorder.log == ["warm up", "record 3", "record 4", "record 5", *others, *replays]


def test_warm_up_records_every_rung_the_largest_first(tiny_llama_dir: Path) -> None:
    model = load_model(tiny_llama_dir, "float32")
    noise = torch.zeros(NUM_BLOCKS, *model.kv_layout(BLOCK_SIZE).block_shape)
    bench = Bench(model, noise, RUNGS, "graphs")

    assert [timing.rung for timing in bench.runner.warm_up()] == [rung for rung in reversed(RUNGS) for _ in WALKS]

    assert bench.recorder.log.count("warm up") == 3
    bench.recorder.log.clear()
    bench.run("prefill_text", rows_of("prefill_text", 8, model.config.vocab_size))
    assert bench.recorder.log == ["replay 6", "replay 7", "replay 8"]  # of the smallest rung, recorded last
    assert bench.pool.tensor[9:].abs().sum() == 0  # warm-up wrote to no block of the pool's but scratch


def test_embeddings_go_through_graphs(tiny_llama_dir: Path) -> None:
    model = load_model(tiny_llama_dir, "float32")
    noise = torch.zeros(NUM_BLOCKS, *model.kv_layout(BLOCK_SIZE).block_shape)
    tokens = random_tokens(11, model.config.vocab_size, seed=1)
    expected = Bench(model, noise, ()).run("mixed", [StepRow(tokens, 0, [1], wants_logits=True)])[0]
    bench = Bench(model, noise, RUNGS, "graphs")

    vectors = model.weights.embedding[tokens[:6]].numpy()
    row = StepRow([0] * 6 + tokens[6:], 0, [1], wants_logits=True, input_embeddings=vectors)

    assert torch.equal(bench.run("mixed", [row])[0], expected)
