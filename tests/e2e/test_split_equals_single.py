"""The split system against the single-process engine: real processes, the real model, greedy, token for token."""

import asyncio
from typing import Any

import pytest

from baton_client import AsyncBatonClient, FinishReason
from tests.e2e.processes import deployed

PROMPT_LENS = (1, 31, 32, 33, 255, 256, 257, 3000)
NUM_TOKENS = 12
TEXT = (
    "The history of computing begins with mechanical devices. In 1936 Alan Turing described an abstract machine "
    "which reads symbols from a tape; later, engineers built electronic machines with thousands of vacuum tubes, and "
    "programmers wrote code such as `for i in range(10): print(i)` to control them. "
)


async def prompts(client: AsyncBatonClient) -> list[list[int]]:
    """Prompts of real text, each of another stretch of it."""
    token_ids = await client.tokenize(TEXT * 60)
    assert len(token_ids) > max(PROMPT_LENS) + len(PROMPT_LENS)
    return [token_ids[index : index + length] for index, length in enumerate(PROMPT_LENS)]


async def complete(client: AsyncBatonClient, prompt: list[int], salt: str) -> tuple[int, ...]:
    """The completion's tokens, with nothing reused from earlier requests."""
    result = await client.generate(
        prompt, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, token_ids=True, cache_salt=salt
    )
    assert result.usage.cached_tokens == 0
    assert result.completions[0].finish_reason is FinishReason.LENGTH
    return result.completions[0].token_ids


async def complete_all(client: AsyncBatonClient, prompt_list: list[list[int]], salt: str) -> list[tuple[int, ...]]:
    return list(await asyncio.gather(*(complete(client, p, f"{salt}{i}") for i, p in enumerate(prompt_list))))


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("smollm2_dir")
async def test_split_equals_single_process() -> None:
    async with deployed(
        0, 1, SERVING__LOCAL_PREFILL_MAX_TOKENS="null", DECODE__PREFILL_TARGETS="[localhost:1]"
    ) as single:
        prompt_list = await prompts(single.client)
        expected = [await complete(single.client, prompt, f"alone{i}") for i, prompt in enumerate(prompt_list)]
        assert await complete_all(single.client, prompt_list, "together") == expected
    assert len(set(expected)) >= len(expected) - 1, "outputs that are all alike would prove nothing"

    for transport in ("shm", "grpc"):
        offered = {"PREFILL__TRANSPORTS": f"[{transport}]", "DECODE__TRANSPORTS": f"[{transport}]"}
        async with deployed(1, 1, **offered) as split:
            alone = [await complete(split.client, prompt, f"alone{i}") for i, prompt in enumerate(prompt_list)]
            assert alone == expected
            assert await complete_all(split.client, prompt_list, "together") == expected
            assert {line["transport"] for line in split.events("decode", "kv_fetched")} == {transport}
            if transport == "shm":
                check_overlap(split.events("prefill", "chunk_landed"), split.events("decode", "kv_fetched"))


def check_overlap(landed: list[dict[str, Any]], fetched: list[dict[str, Any]]) -> None:
    """A 3,000-token prompt under a 512-token budget: six chunks, fetched while later ones compute."""
    request_id = next(line["request_id"] for line in landed if line["input_len"] == 3000)
    chunks = [line["timestamp"] for line in landed if line["request_id"] == request_id]
    fetches = [line["timestamp"] for line in fetched if line["request_id"] == request_id]
    assert len(fetches) >= 6
    assert fetches[0] < chunks[-1]
