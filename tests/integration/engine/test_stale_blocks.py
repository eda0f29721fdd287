"""Blocks are recycled: what an earlier owner left behind a sequence's tokens must not reach its results.

Zero times what is no number is no number. One request of absurd vectors would otherwise spoil those that get its
blocks, long after it failed.
"""

from pathlib import Path

import pytest

from shared.engine.runner import load_model
from tests.integration.engine.harness import Harness, random_tokens, table_for
from tests.tiny_models import write_tiny_model


@pytest.mark.parametrize("left", [float("nan"), float("inf"), float("-inf"), 3e38])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chunk_lens", [[1], [45], [20, 25], [32, 1, 1], [128, 1, 33]])
def test_what_was_left_in_a_block_changes_nothing(
    tiny_llama_dir: Path, dtype: str, left: float, chunk_lens: list[int]
) -> None:
    model = load_model(tiny_llama_dir, dtype)
    token_ids = random_tokens(sum(chunk_lens), model.config.vocab_size, seed=1)
    table = table_for(len(token_ids) + 40)
    expected = Harness(model).outcome(token_ids, table, chunk_lens)
    spoiled = Harness(model)
    spoiled.pool.tensor.fill_(left)
    assert spoiled.outcome(token_ids, table, chunk_lens).equals(expected)


def test_a_residual_stream_wider_than_all_else(tmp_path: Path) -> None:
    """Its linears had too little work space, which torch makes up for with a warning."""
    directory = write_tiny_model(tmp_path / "wide", hidden_size=1024, intermediate_size=32, head_dim=16)
    model = load_model(directory, "float32")
    token_ids = random_tokens(256, model.config.vocab_size, seed=1)
    whole = Harness(model).outcome(token_ids, table_for(256), [256])
    assert Harness(model).outcome(token_ids, table_for(256), [15] * 17 + [1]).equals(whole)
