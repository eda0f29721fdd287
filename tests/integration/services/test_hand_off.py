"""Greedy and sampled output of the split system equals the single-process engine's, whatever the way KV takes."""

import asyncio
from pathlib import Path

import pytest

from baton_client import AsyncBatonClient, FinishReason, Options
from tests.services import greedy, running_single, running_split, serving_config

# Around the edges of blocks (8), rungs (8, 16, 32, 64) and chunks (64), and over many chunks.
PROMPT_LENS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 200)
MAX_TOKENS = 12


def prompt(length: int) -> list[int]:
    return [(37 * position + 11 * length) % 256 for position in range(length)]


async def complete(client: AsyncBatonClient, length: int, salt: str, options: Options) -> tuple[int, ...]:
    """The completion's tokens; with a salt of its own a request reuses no KV."""
    given: Options = {**greedy(cache_salt=salt, max_tokens=MAX_TOKENS), **options}
    result = await client.generate(prompt(length), **given)
    assert result.usage.cached_tokens == 0
    (completion,) = result.completions
    assert completion.finish_reason is FinishReason.LENGTH
    return completion.token_ids


async def complete_all(
    client: AsyncBatonClient, salt: str, together: bool, options: Options | None = None
) -> list[tuple[int, ...]]:
    calls = [complete(client, length, f"{salt}{length}", options or {}) for length in PROMPT_LENS]
    return list(await asyncio.gather(*calls)) if together else [await call for call in calls]


@pytest.mark.parametrize("transport", ["grpc", "shm", "local"])
async def test_split_output_equals_the_single_process(tiny_llama_dir: Path, transport: str) -> None:
    serving = serving_config(tiny_llama_dir)
    sampled: Options = {"temperature": 1.0, "seed": 7, "top_p": 0.95}
    async with running_single(serving) as single:
        expected = await complete_all(single, "s", together=False)
        expected_sampled = await complete_all(single, "t", together=True, options=sampled)
    assert len(set(expected)) > len(PROMPT_LENS) // 2, "outputs that are all alike would prove nothing"
    async with running_split(serving, [transport]) as split:
        assert await complete_all(split.client, "a", together=False) == expected
        assert await complete_all(split.client, "b", together=True) == expected
        assert await complete_all(split.client, "c", together=True, options=sampled) == expected_sampled
        assert split.metric("decode", "kv_transferred_bytes_total", transport=transport) > 0
        await split.settled()


async def test_a_cached_prefix_changes_nothing_but_the_counts(tiny_llama_dir: Path) -> None:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        options = greedy(max_tokens=MAX_TOKENS)
        cold = await split.client.generate(prompt(100), **options)
        warm = await split.client.generate(prompt(100), **options)
        salted = await split.client.generate(prompt(100), **greedy(max_tokens=MAX_TOKENS, cache_salt="other"))
    assert cold.completions == warm.completions == salted.completions
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens, salted.usage.cached_tokens) == (0, 96, 0)


async def test_short_uncached_rest_is_prefilled_locally(tiny_llama_dir: Path) -> None:
    serving = serving_config(tiny_llama_dir, local_prefill_max_tokens=16)
    async with running_single(serving) as single:
        expected = [await complete(single, length, "x", {}) for length in (16, 17)]
    async with running_split(serving) as split:
        assert [await complete(split.client, length, "x", {}) for length in (16, 17)] == expected
        assert split.metric("prefill", "prompt_tokens_total") == 17
