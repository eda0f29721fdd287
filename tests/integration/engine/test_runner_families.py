"""Tiny random models of every family against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from shared.engine.runner import load_model
from shared.engine.step import StepRow
from tests.integration.engine.harness import Harness, random_tokens, table_for
from tests.tiny_models import VOCAB_SIZE, write_tiny_model

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, tied": ("llama", {}),
    "llama, untied": ("llama", {"tie_word_embeddings": False}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, llama3 rope": ("llama", {"rope_scaling": LLAMA3_ROPE}),
    "llama, linear rope": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama, all heads have their own keys": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3, biases": ("qwen3", {"attention_bias": True}),
}


def reference_logits(directory: Path, token_ids: list[int]) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_logits_equal_those_of_transformers(tmp_path: Path, case: str, num_shards: int) -> None:
    model_type, overrides = CASES[case]
    directory = write_tiny_model(tmp_path, model_type, num_shards=num_shards, **overrides)
    tokens = random_tokens(150, VOCAB_SIZE, seed=2)
    harness = Harness(load_model(directory, "float32"), max_num_rows=150)

    # Tokens of one sequence may be rows of one step: all KV of a layer is written before it is read.
    rows = [StepRow([token], position, table_for(150), wants_logits=True) for position, token in enumerate(tokens)]
    logits = harness.run(*rows)

    reference = reference_logits(directory, tokens)
    assert torch.allclose(logits, reference, atol=2e-4)
    assert reference.std() > 0.3


def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, "qwen3", dtype=torch.bfloat16)
    tokens = random_tokens(150, VOCAB_SIZE, seed=2)
    model = load_model(directory, "bfloat16")
    harness = Harness(model)

    outcome = harness.outcome(tokens, table_for(150), [100, 50])

    assert harness.pool.tensor.dtype == torch.bfloat16
    assert (outcome.logits - reference_logits(directory, tokens)[-1]).abs().mean() < 0.05
