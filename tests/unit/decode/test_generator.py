"""A request computed here, from its admission to its last token."""

import asyncio
from collections.abc import Callable

import pytest

from decode_service.request import Delta, Finished, GenerationRequest, Started, Usage
from shared.errors import DuplicateRequestError, QueueFullError
from shared.kv.allocator import BlockCounts
from shared.text.stopping import Finish, FinishReason, StoppingParams
from shared.worker.step_loop import ChunkLanded, Retired, TokenSampled
from tests.tiny_models import EOS_TOKEN_ID, IM_END_ID
from tests.unit.decode.generating import Desk
from tests.unit.decode.requests import GREEDY, embeddings_request, generation_request, vectors_of

MakeDesk = Callable[..., Desk]
LENGTH = Finish(FinishReason.LENGTH)


async def test_events_come_in_order(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(generation_request("a", prompt=(1, 2, 3), max_tokens=5))
    await made.submitted("a")
    made.generator.on_events([ChunkLanded("a", 3), TokenSampled("a", ord("H"), None)])
    made.generator.on_events([TokenSampled("a", ord("i"), None)])
    made.generator.on_events(
        [TokenSampled("a", EOS_TOKEN_ID, Finish(FinishReason.STOP, EOS_TOKEN_ID)), Retired("a", None, 5)]
    )
    *events, usage = await caller.end()
    assert events == [
        Started("a", 3, 0),
        Delta("H", (72,)),
        Delta("i", (105,)),
        Delta("", (EOS_TOKEN_ID,)),
        Finished(Finish(FinishReason.STOP, matched_token_id=EOS_TOKEN_ID)),
    ]
    assert isinstance(usage, Usage)
    assert (usage.prompt_len, usage.num_completion_tokens, usage.num_cached_tokens) == (3, 3, 0)
    assert usage.kv_transfer_s == 0
    assert 0 <= usage.queue_s <= usage.queue_s + usage.prefill_s <= usage.first_token_s <= usage.total_s
    assert made.is_idle
    assert made.loop.cancelled == []


async def test_what_the_step_loop_is_given(desk: MakeDesk) -> None:
    made = desk()
    stopping = StoppingParams(max_tokens=4)
    caller = made.follow(generation_request("a", (1, 2, 3), max_tokens=4, priority=3, stopping=stopping))
    await made.submitted("a")
    (sequence,) = made.loop.submitted
    assert (sequence.token_ids, sequence.prompt_len, sequence.num_computed_tokens) == ([1, 2, 3], 3, 0)
    assert len(sequence.block_table) == 2, "seven tokens in blocks of four"
    assert (sequence.sampling, sequence.stopping) == (GREEDY, stopping)
    assert sequence.eos_token_ids == (EOS_TOKEN_ID, IM_END_ID)
    assert (sequence.max_total_len, sequence.priority) == (7, 3)
    await caller.leave()


async def test_max_tokens(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(generation_request("a", (1,), max_tokens=2))
    await made.submitted("a")
    made.sample("a", "xy")
    made.retire("a")
    assert (await caller.end())[:-1] == [Started("a", 1, 0), Delta("x", (120,)), Delta("y", (121,)), Finished(LENGTH)]
    assert made.is_idle


async def test_a_delta_comes_with_its_token(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(generation_request("a", (1,), max_tokens=9))
    await made.submitted("a")
    assert await caller.has(1) == [Started("a", 1, 0)]
    made.sample("a", "x")
    assert (await caller.has(2))[1:] == [Delta("x", (120,))]
    await caller.leave()


async def test_a_stop_string_ends_it_and_the_blocks_go_when_the_loop_lets_go(desk: MakeDesk) -> None:
    made = desk()
    stopping = StoppingParams(max_tokens=9, stop=("XY",))
    caller = made.follow(generation_request("a", (1,), max_tokens=9, stopping=stopping))
    await made.submitted("a")
    made.sample("a", "aXYb")
    assert (await caller.end())[1:-1] == [
        Delta("a", (97,)),
        Delta("", (88,)),
        Delta("", (89,)),
        Finished(Finish(FinishReason.STOP, matched_text="XY")),
    ]
    assert made.loop.cancelled == ["a"]
    assert (made.counts.in_use, made.admission.num_admitted) == (3, 1), "a step may still write to the blocks"
    made.sample("a", "c")
    made.retire("a")
    assert made.is_idle


async def test_two_requests_share_a_step(desk: MakeDesk) -> None:
    made = desk()
    first = made.follow(generation_request("a", (1,), max_tokens=1))
    second = made.follow(generation_request("b", (2,), max_tokens=1))
    await made.submitted("a")
    await made.submitted("b")
    made.generator.on_events(
        [
            ChunkLanded("a", 1),
            TokenSampled("a", 120, LENGTH),
            Retired("a"),
            ChunkLanded("b", 1),
            TokenSampled("b", 121, LENGTH),
            Retired("b"),
        ]
    )
    assert (await first.end())[1] == Delta("x", (120,))
    assert (await second.end())[1] == Delta("y", (121,))
    assert made.is_idle


async def test_a_live_duplicate_is_refused_and_does_not_disturb_the_first(desk: MakeDesk) -> None:
    made = desk()
    first = made.follow(generation_request("a", (1,), max_tokens=1))
    await made.submitted("a")
    before = made.counts
    with pytest.raises(DuplicateRequestError, match="request 'a' is live here") as caught:
        await made.follow(generation_request("a", (2,))).end()
    assert caught.value.metadata == {"request_id": "a"}
    assert made.counts == before
    assert made.loop.cancelled == []
    made.sample("a", "x")
    made.retire("a")
    assert (await first.end())[1:3] == [Delta("x", (120,)), Finished(LENGTH)]


async def test_an_id_is_in_use_until_its_last_step_is_over(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(generation_request("a", (1,)))
    await made.submitted("a")
    await caller.leave()
    with pytest.raises(DuplicateRequestError):
        await made.follow(generation_request("a", (1,))).end()
    made.retire("a")
    again = made.follow(generation_request("a", (1,), max_tokens=1))
    await asyncio.sleep(0)
    await made.submitted("a")
    made.sample("a", "x")
    made.retire("a")
    assert (await again.end())[1] == Delta("x", (120,))


async def test_the_queue_is_bounded(desk: MakeDesk) -> None:
    made = desk(max_num_seqs=1, max_queue_len=1)
    running = made.follow(generation_request("a", (1,)))
    await made.submitted("a")
    waiting = made.follow(generation_request("b", (1,)))
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await made.follow(generation_request("c", (1,))).end()
    assert made.generator.num_live == 2
    await running.leave()
    await waiting.leave()


async def test_computed_prompt_blocks_are_shared_while_the_rest_is_computed(desk: MakeDesk) -> None:
    made = desk()
    prompt = tuple(range(9))
    first = made.follow(generation_request("a", prompt, max_tokens=1))
    await made.submitted("a")
    made.generator.on_events([ChunkLanded("a", 5)])
    second = made.follow(generation_request("b", prompt, max_tokens=1))
    await made.submitted("b")
    assert await second.has(1) == [Started("b", 9, 4)]
    assert made.loop.submitted[1].num_computed_tokens == 4
    assert made.loop.submitted[1].block_table[0] == made.loop.submitted[0].block_table[0]
    await first.leave()
    await second.leave()


async def test_a_conversations_next_turn_starts_from_its_completion(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(generation_request("a", (1, 2, 3), max_tokens=3))
    await made.submitted("a")
    made.generator.on_events([ChunkLanded("a", 3)])
    made.sample("a", "xyz")
    made.retire("a", num_computed_tokens=5)
    await caller.end()
    assert made.counts == BlockCounts(free=7, cached=1, in_use=0)
    turn = made.follow(generation_request("b", (1, 2, 3, *b"xyz", 9), max_tokens=1))
    await made.submitted("b")
    assert await turn.has(1) == [Started("b", 7, 4)]
    await turn.leave()


async def test_what_was_not_computed_is_not_shared(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(generation_request("a", tuple(range(9)), max_tokens=1))
    await made.submitted("a")
    made.generator.on_events([ChunkLanded("a", 4)])
    await caller.leave()
    made.retire("a", num_computed_tokens=4)
    assert made.counts == BlockCounts(free=7, cached=1, in_use=0), "one of the two full blocks has its KV"


async def test_what_is_counted(desk: MakeDesk) -> None:
    made = desk()
    for name in "ab":
        caller = made.follow(generation_request(name, (1, 2, 3, 4, 5), max_tokens=2))
        await made.submitted(name)
        made.generator.on_events([ChunkLanded(name, 5)])
        made.sample(name, "xy")
        made.retire(name, num_computed_tokens=6)
        await caller.end()
    value = made.metrics.registry.get_sample_value
    assert value("baton_decode_prompt_tokens_total") == 10
    assert value("baton_decode_cached_tokens_total") == 4
    assert value("baton_decode_generated_tokens_total") == 4
    assert value("baton_decode_ttft_seconds_count") == 2


async def test_vectors_go_to_the_step_loop_and_a_second_prompt_of_them_reuses_all_that_was_computed(
    desk: MakeDesk,
) -> None:
    made = desk()
    vectors = vectors_of(1, 2, 3, 4, 5, 6)
    caller = made.follow(embeddings_request("a", vectors, max_tokens=4))
    await made.submitted("a")
    (sequence,) = made.loop.submitted
    assert sequence.input_embeddings is vectors
    assert (sequence.token_ids, sequence.prompt_len) == ([0] * 6, 6)
    made.generator.on_events([ChunkLanded("a", 6)])
    made.sample("a", "wxyz")
    made.retire("a", num_computed_tokens=9)
    events = await caller.end()
    assert [event.token_ids for event in events if isinstance(event, Delta)] == [(letter,) for letter in b"wxyz"]
    assert made.counts == BlockCounts(free=6, cached=2, in_use=0)
    of_both = made.ledger.prompt_hashes([*[0] * 6, *b"wxy"], "", vectors)
    found = made.ledger.reserve_hashed(of_both, prompt_len=9, total_len=9)
    assert found is not None
    assert found.num_cached_tokens == 8, "the second block is of two vectors and two generated tokens"
    made.ledger.release(found)
    assert await cached(made, embeddings_request("b", vectors)) == 4
    assert await cached(made, embeddings_request("c", vectors_of(1, 2, 3, 0, 5, 6))) == 0
    assert await cached(made, generation_request("d", (0,) * 6)) == 0


async def cached(made: Desk, request: GenerationRequest) -> int:
    """Tokens of a prompt that need not be computed."""
    caller = made.follow(request)
    await made.submitted(request.request_id)
    (started,) = await caller.has(1)
    await caller.leave()
    made.retire(request.request_id)
    assert isinstance(started, Started)
    return started.num_cached_tokens
