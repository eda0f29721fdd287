"""Vectors in the place of token ids: a text's own embeddings compute what the text does, bit for bit."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.engine.runner import LoadedModel, load_model
from shared.engine.step import StepRow
from tests.integration.engine.harness import Harness, Outcome, random_tokens, table_for
from tests.tiny_models import write_tiny_model

SMOLLM2 = "smollm2"
CASES = [("llama", "float32"), ("llama", "bfloat16"), ("qwen3", "bfloat16"), (SMOLLM2, "float32")]
NUM_TOKENS = 150
TABLE = table_for(NUM_TOKENS)


@pytest.fixture(scope="module", params=CASES, ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    family, dtype = request.param
    if family == SMOLLM2:
        return load_model(request.getfixturevalue("smollm2_dir"), dtype)
    return load_model(write_tiny_model(tmp_path_factory.mktemp("tiny"), family), dtype)


@pytest.fixture(scope="module")
def tokens(model: LoadedModel) -> list[int]:
    return random_tokens(NUM_TOKENS, model.config.vocab_size, seed=5)


@pytest.fixture(scope="module")
def expected(model: LoadedModel, tokens: list[int]) -> Outcome:
    return Harness(model).outcome(tokens, TABLE, [NUM_TOKENS])


def embeddings_of(model: LoadedModel, tokens: list[int]) -> npt.NDArray[np.float32]:
    vectors: npt.NDArray[np.float32] = model.weights.embedding[tokens].float().numpy()
    vectors.setflags(write=False)  # as arrays are that lie in a message
    return vectors


@pytest.mark.parametrize("chunk_lens", [[150], [1, 149], [32, 64, 54], [7] * 21 + [3]], ids=str)
def test_own_embeddings_of_a_text_give_its_logits(
    model: LoadedModel, tokens: list[int], expected: Outcome, chunk_lens: list[int]
) -> None:
    harness, vectors, start = Harness(model), embeddings_of(model, tokens), 0

    for length in chunk_lens:
        part = vectors[start : start + length]
        logits = harness.run(StepRow([0] * length, start, TABLE, wants_logits=True, input_embeddings=part))
        start += length

    assert Outcome(harness.kv(TABLE, NUM_TOKENS), logits[0]).equals(expected)


def test_a_row_may_go_on_with_token_ids(model: LoadedModel, tokens: list[int], expected: Outcome) -> None:
    harness, vectors = Harness(model), embeddings_of(model, tokens)[:60]

    logits = harness.run(StepRow([0] * 60 + tokens[60:], 0, TABLE, wants_logits=True, input_embeddings=vectors))

    assert Outcome(harness.kv(TABLE, NUM_TOKENS), logits[0]).equals(expected)


def test_rows_with_vectors_and_with_ids_share_a_step(model: LoadedModel, tokens: list[int], expected: Outcome) -> None:
    harness, vectors = Harness(model), embeddings_of(model, tokens)
    table = table_for(NUM_TOKENS, 20)
    rows = [
        StepRow(tokens[:40], 0, table_for(40, 40), wants_logits=False),
        StepRow([0] * NUM_TOKENS, 0, TABLE, wants_logits=True, input_embeddings=vectors),
        StepRow(tokens, 0, table, wants_logits=True),
    ]

    logits = harness.run(*rows)

    assert Outcome(harness.kv(TABLE, NUM_TOKENS), logits[0]).equals(expected)
    assert Outcome(harness.kv(table, NUM_TOKENS), logits[1]).equals(expected)


def test_vectors_count_not_the_ids_beside_them(model: LoadedModel, tokens: list[int], expected: Outcome) -> None:
    vectors = embeddings_of(model, tokens) + np.float32(0.01)

    row = StepRow(tokens, 0, TABLE, wants_logits=True, input_embeddings=vectors)

    assert not torch.equal(Harness(model).run(row)[0], expected.logits)


@pytest.mark.parametrize(
    ("num_vectors", "num_values", "dtype"),
    [(4, 64, np.float32), (0, 64, np.float32), (3, 63, np.float32), (3, 64, np.float64), (3, None, np.float32)],
    ids=["too many", "none", "too short", "float64", "flat"],
)
def test_vectors_of_another_shape_are_a_bug_of_the_caller(
    tiny_llama_dir: Path, num_vectors: int, num_values: int | None, dtype: npt.DTypeLike
) -> None:
    vectors = np.zeros(num_vectors if num_values is None else (num_vectors, num_values), dtype)
    harness = Harness(load_model(tiny_llama_dir, "float32"))

    with pytest.raises(AssertionError, match="embeddings"):
        harness.run(StepRow([0] * 3, 0, [1], wants_logits=True, input_embeddings=vectors))
