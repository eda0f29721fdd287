"""Text, token ids and embeddings are the same prompt: in one step and in chunks, on a tiny and on the real model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from baton.v1 import generation_pb2
from baton_client import AsyncBatonClient
from decode_service.offline import OfflineEngine, OfflineResult, generate_batch
from decode_service.request import GenerationRequest
from shared.config.serving import ServingConfig
from tests.integration.offline.recording import random_prompts, request, serving_of
from tests.services import greedy, running_single
from tests.tiny_models import write_tiny_model

TEXTS = [
    "The capital of France is",
    "A prefill service computes prompts in chunks, and a decode service generates. " * 3,
    "1, 2, 3,",
]
MAX_TOKENS = 6


def embedded(engine: OfflineEngine, asked: GenerationRequest) -> GenerationRequest:
    """The same prompt as the vectors of its tokens."""
    table = engine.engine.model.weights.embedding
    vectors = table[list(asked.prompt_token_ids)].float().numpy()
    return replace(
        asked, prompt_token_ids=(0,) * asked.prompt_len, input_embeddings=np.ascontiguousarray(vectors, np.float32)
    )


def results_of(serving: ServingConfig, prompts: list[list[int]], *, embed: bool) -> list[OfflineResult]:
    with OfflineEngine.open(serving, num_kv_blocks=128, threads=1) as engine:
        asked = [request(prompt, MAX_TOKENS) for prompt in prompts]
        asked = [embedded(engine, each) for each in asked] if embed else asked
        outcomes = generate_batch(engine, asked, keep_logits=True)
    assert all(isinstance(outcome, OfflineResult) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, OfflineResult)]


def assert_equal(left: list[OfflineResult], right: list[OfflineResult]) -> None:
    for one, other in zip(left, right, strict=True):
        assert one.final_logits is not None
        assert other.final_logits is not None
        assert torch.equal(one.final_logits, other.final_logits)
        assert one.token_ids == other.token_ids
        assert one.text == other.text


def small(model: str | Path, budget: int) -> ServingConfig:
    """Few rungs, so that warm-up of the real model takes no time."""
    settings = serving_of(Path("unused"), budget).model_dump()
    settings |= {
        "model": str(model),
        "kv": {"block_size": 32},
        "max_num_seqs": {"prefill": 4, "decode": 4},
        "prefill_token_buckets": {"prefill": {"prefill_text": [budget]}, "decode": {"mixed": [32]}},
        "decode_batch_buckets": {"decode": {"decode": [4]}},
        "max_batch_tokens": {"prefill": {"prefill_text": budget}, "decode": {"mixed": 32}},
    }
    return ServingConfig.model_validate(settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tiny_model(tmp_path: Path, dtype: torch.dtype) -> None:
    model = write_tiny_model(tmp_path / "tiny", dtype=dtype)
    prompts = random_prompts([1, 8, 9, 40, 100])
    expected = results_of(small(model, 256), prompts, embed=False)
    assert_equal(results_of(small(model, 16), prompts, embed=False), expected)
    assert_equal(results_of(small(model, 256), prompts, embed=True), expected)
    assert_equal(results_of(small(model, 16), prompts, embed=True), expected)


async def test_the_real_model_offline_as_behind_grpc(smollm2_dir: Path) -> None:
    serving = small(smollm2_dir, 96)
    async with running_single(serving, num_kv_blocks=64) as client:
        streamed = [await _stream(client, text) for text in TEXTS]
    with OfflineEngine.open(serving, num_kv_blocks=64, threads=1) as engine:
        asked = [engine.request(generation_pb2.GenerateRequest(text=text)) for text in TEXTS]
        prompts = [list(each.prompt_token_ids) for each in asked]
    in_one_step = results_of(serving, prompts, embed=False)
    assert sum(map(len, prompts)) <= 96
    assert [list(result.token_ids) for result in in_one_step] == streamed
    assert_equal(results_of(small(smollm2_dir, 16), prompts, embed=False), in_one_step)
    assert_equal(results_of(serving, prompts, embed=True), in_one_step)
    assert_equal(results_of(small(smollm2_dir, 16), prompts, embed=True), in_one_step)


async def _stream(client: AsyncBatonClient, text: str) -> list[int]:
    completion = await client.generate(text, **greedy(max_tokens=MAX_TOKENS))
    return list(completion.completions[0].token_ids)
