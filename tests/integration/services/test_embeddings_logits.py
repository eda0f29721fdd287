"""A prompt of a text's own embeddings gives the text's own logits, bit for bit, however it is cut and carried."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_client import AsyncBatonClient, Completion
from shared.config.serving import ServingConfig
from tests.integration.services.vectors import Recording, embedded, recorded, table_of
from tests.services import TINY_SERVING, greedy, running_single, running_split, serving_config

PROMPT_LEN = 300
MAX_TOKENS = 6
TEXT = "The capital of France is Paris, and the largest lake of Italy is Garda. "


def settings(budget: int) -> dict[str, Any]:
    """One rung, so that steps are not padded for long."""
    return {
        "max_batch_tokens": {"prefill": {"prefill_text": budget}, "decode": {"mixed": budget}},
        "kv": {"block_size": 16},
        "max_num_seqs": {"prefill": 2, "decode": 2},
        "prefill_token_buckets": {"prefill": {"prefill_text": [budget]}, "decode": {"mixed": [budget]}},
        "decode_batch_buckets": {"decode": {"decode": [2]}},
    }


def chunks_of(budget: int, with_vectors: bool) -> list[tuple[int, int, int]]:
    """The prompt in steps of the budget, then a token a step."""
    cuts = [(start, min(budget, PROMPT_LEN - start)) for start in range(0, PROMPT_LEN, budget)]
    prompt = [(start, length, length if with_vectors else 0) for start, length in cuts]
    return prompt + [(PROMPT_LEN + index, 1, 0) for index in range(MAX_TOKENS - 1)]


@pytest.fixture(scope="module")
def recording() -> Iterator[Recording]:
    with recorded() as found:
        yield found


@asynccontextmanager
async def running(where: str, serving: ServingConfig, **services: object) -> AsyncGenerator[AsyncBatonClient]:
    """Two services over a transport, or one that computes everything."""
    if where == "one process":
        async with running_single(serving, **services) as client:
            yield client
        return
    async with running_split(serving, [where], prefill=services, decode=services) as split:
        yield split.client
        assert split.metric("decode", "kv_transferred_bytes_total", transport=where) > 0


def assert_same_logits(found: Recording, expected: Recording) -> None:
    assert found.logits.keys() == expected.logits.keys()
    for kv_len, logits in expected.logits.items():
        assert torch.equal(found.logits[kv_len], logits), f"logits after {kv_len} tokens"


@dataclass(frozen=True)
class Reference:
    """The default model's answer to the text itself, in one process and one chunk."""

    token_ids: list[int]
    completions: tuple[Completion, ...]
    recording: Recording


@pytest.fixture(name="reference", scope="module")
def _reference(smollm2_dir: Path, recording: Recording) -> Reference:
    async def compute() -> Reference:
        async with running_single(serving_config(smollm2_dir, settings(512)), num_kv_blocks=64) as client:
            token_ids = (await client.tokenize(TEXT * 20))[:PROMPT_LEN]
            recording.take()
            result = await client.generate(token_ids, **greedy(max_tokens=MAX_TOKENS))
        return Reference(token_ids, result.completions, recording.take())

    found = asyncio.run(compute())
    assert found.recording.chunks == chunks_of(512, with_vectors=False)
    return found


@pytest.mark.parametrize("budget", [512, 64])
@pytest.mark.parametrize("where", ["shm", "grpc", "one process"])
async def test_of_the_default_model(
    smollm2_dir: Path, recording: Recording, reference: Reference, where: str, budget: int
) -> None:
    """In one chunk and in five."""
    async with running(where, serving_config(smollm2_dir, settings(budget)), num_kv_blocks=64) as client:
        recording.take()
        prompt = embedded(reference.token_ids, table_of(smollm2_dir))
        result = await client.generate(prompt, **greedy(max_tokens=MAX_TOKENS))
    found = recording.take()
    assert found.chunks == chunks_of(budget, with_vectors=True)
    assert list(found.logits) == [PROMPT_LEN + index for index in range(MAX_TOKENS)]
    assert_same_logits(found, reference.recording)
    assert result.completions == reference.completions
    assert (result.usage.prompt_tokens, result.usage.cached_tokens) == (PROMPT_LEN, 0)


# Around the edges of blocks (8), rungs (8, 16, 32, 64) and chunks (64), and over many chunks.
PROMPT_LENS = (1, 7, 8, 9, 63, 64, 65, 200)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("where", ["shm", "grpc", "local", "one process"])
async def test_every_length(tiny_llama_dir: Path, recording: Recording, where: str, dtype: str) -> None:
    """Of a tiny model that computes in float32 or in bfloat16; its vectors go as what it has them in."""
    serving = serving_config(tiny_llama_dir, TINY_SERVING, dtype=dtype)
    table = table_of(tiny_llama_dir)
    async with running(where, serving) as client:
        for length in PROMPT_LENS:
            token_ids = [(37 * position + 11 * length) % 256 for position in range(length)]
            options = greedy(max_tokens=MAX_TOKENS)
            recording.take()
            of_text = await client.generate(token_ids, **options)
            expected = recording.take()
            of_vectors = await client.generate(embedded(token_ids, table, dtype), **options)
            found = recording.take()
            assert of_vectors.completions == of_text.completions
            assert (of_vectors.usage.prompt_tokens, of_vectors.usage.cached_tokens) == (length, 0)
            assert [chunk[:2] for chunk in found.chunks] == [chunk[:2] for chunk in expected.chunks]
            assert sum(num_vectors for _, _, num_vectors in found.chunks) == length
            assert len(found.logits) == MAX_TOKENS
            assert_same_logits(found, expected)
