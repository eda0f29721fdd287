"""What a sequence computes does not depend, bit for bit, on how, where or beside what it is computed."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from shared.engine.runner import LoadedModel, load_model
from shared.engine.step import StepRow
from tests.integration.engine.harness import Harness, num_threads, random_tokens, table_for
from tests.tiny_models import write_tiny_model

SMOLLM2 = "smollm2"
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", SMOLLM2]
NUM_TOKENS = 203


@cache
def loaded(directory: Path) -> LoadedModel:
    return load_model(directory, "float32")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    if request.param == SMOLLM2:
        return loaded(request.getfixturevalue("smollm2_dir"))
    return load_model(write_tiny_model(tmp_path_factory.mktemp("tiny"), request.param), "float32")


@pytest.fixture(scope="module")
def tokens(model: LoadedModel) -> list[int]:
    return random_tokens(NUM_TOKENS, model.config.vocab_size, seed=1)


def cuts(*lens: int) -> list[int]:
    """Chunk lengths, ended by one that takes the rest."""
    return [*lens, NUM_TOKENS - sum(lens)]


@pytest.mark.parametrize(
    "chunk_lens",
    [
        cuts(1),
        cuts(31),
        cuts(32, 96),
        cuts(100, 100),
        cuts(17, 15, 1, 64),
        cuts(*[7] * 28),
        cuts(128, 1, 1, 1, 1),
    ],
    ids=str,
)
def test_chunks_equal_the_whole(model: LoadedModel, tokens: list[int], chunk_lens: list[int]) -> None:
    table = table_for(NUM_TOKENS)
    whole = Harness(model).outcome(tokens, table, [NUM_TOKENS])

    assert Harness(model).outcome(tokens, table, chunk_lens).equals(whole)


def test_decoding_equals_prefill_of_the_same_tokens(model: LoadedModel, tokens: list[int]) -> None:
    # Decodes over the edges of a group of keys (128) and of blocks (128, 192).
    table, chunk_lens = table_for(NUM_TOKENS), cuts(120, *[1] * 12, 55, *[1] * 15)
    whole = Harness(model).outcome(tokens, table, [NUM_TOKENS])
    stepwise = Harness(model).outcome(tokens, table, chunk_lens)

    assert stepwise.equals(whole)


def test_batch_equals_each_alone(model: LoadedModel) -> None:
    lens = [1, 40, 203, 16, 17, 96, 129]
    sequences = [random_tokens(length, model.config.vocab_size, seed) for seed, length in enumerate(lens)]
    tables: list[list[int]] = []
    for length in lens:
        tables.append(table_for(length, 1 + sum(map(len, tables))))
    together = Harness(model)

    rows = [StepRow(sequence, 0, table, wants_logits=True) for sequence, table in zip(sequences, tables, strict=True)]
    logits = together.run(*rows)

    for index, (sequence, table) in enumerate(zip(sequences, tables, strict=True)):
        alone = Harness(model).outcome(sequence, table_for(len(sequence)), [len(sequence)])
        assert torch.equal(logits[index], alone.logits), index
        assert torch.equal(together.kv(table, len(sequence)), alone.kv), index


def test_decode_rows_and_a_chunk_in_one_step_equal_each_alone(model: LoadedModel, tokens: list[int]) -> None:
    lens = [33, 128, 64]
    sequences = [random_tokens(length, model.config.vocab_size, seed) for seed, length in enumerate(lens)]
    tables = [table_for(length, 10 * (index + 2)) for index, length in enumerate(lens)]
    harness = Harness(model)
    for sequence, table in zip(sequences, tables, strict=True):
        harness.outcome(sequence[:-1], table, [len(sequence) - 1])
    harness.outcome(tokens[:50], table_for(NUM_TOKENS), [50])

    logits = harness.run(
        *(
            StepRow(sequence[-1:], len(sequence) - 1, table, wants_logits=True)
            for sequence, table in zip(sequences, tables, strict=True)
        ),
        StepRow(tokens[50:], 50, table_for(NUM_TOKENS), wants_logits=True),
    )

    alone = [Harness(model).outcome(sequence, table_for(len(sequence)), [len(sequence)]) for sequence in sequences]
    whole = Harness(model).outcome(tokens, table_for(NUM_TOKENS), [NUM_TOKENS])
    for index, outcome in enumerate([*alone, whole]):
        assert torch.equal(logits[index], outcome.logits), index


def test_number_of_threads_does_not_matter(model: LoadedModel, tokens: list[int]) -> None:
    table, chunk_lens = table_for(NUM_TOKENS), cuts(150, 1, 1)
    with num_threads(1):
        single = Harness(model).outcome(tokens, table, chunk_lens)
    with num_threads(2):
        assert Harness(model).outcome(tokens, table, chunk_lens).equals(single)


def test_computed_padding_is_neutral(model: LoadedModel, tokens: list[int]) -> None:
    table = table_for(NUM_TOKENS)
    plain = Harness(model).outcome(tokens, table, cuts(70, 1))
    harness = Harness(model, rungs=(64, 256), compute_padding=True)

    assert harness.outcome(tokens, table, cuts(70, 1)).equals(plain)
    assert harness.pool.tensor[0].abs().sum() > 0
    others = [block for block in range(1, 64) if block not in table]
    assert harness.pool.tensor[others].abs().sum() == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_which_blocks_a_sequence_has_does_not_matter(model: LoadedModel, tokens: list[int], seed: int) -> None:
    plain = Harness(model).outcome(tokens, table_for(NUM_TOKENS), cuts(100))
    shuffled = 1 + torch.randperm(63, generator=torch.Generator().manual_seed(seed))

    harness = Harness(model)
    harness.pool.tensor[1:] = 5.0  # what others have left in the blocks

    assert harness.outcome(tokens, shuffled[: len(table_for(NUM_TOKENS))].tolist(), cuts(100)).equals(plain)


def test_sequences_that_differ_in_one_token_differ(model: LoadedModel, tokens: Sequence[int]) -> None:
    """That the comparisons above can tell anything."""
    changed = [*tokens]
    changed[60] = (changed[60] + 1) % model.config.vocab_size
    table = table_for(NUM_TOKENS)

    first, second = (Harness(model).outcome(ids, table, [NUM_TOKENS]) for ids in (tokens, changed))

    assert torch.equal(first.kv[:60], second.kv[:60])
    assert not torch.equal(first.kv[60], second.kv[60])
    assert not torch.equal(first.logits, second.logits)
