"""Several completions of a prompt that is computed elsewhere, and prompts whose log-probabilities are wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import pytest

from decode_service.completion import Drawn
from decode_service.prefill_stream import Accepted, PrefillEvent, PrefillWork, PromptLogprobs
from decode_service.request import Delta, Finished, Started
from shared.constraints.compiler import ConstraintCompiler
from shared.constraints.constraint import Constraint, ConstraintKind
from shared.constraints.matcher import ConstraintError, ConstraintMatcher
from shared.errors import InvalidRequestError, Reason, UnavailableError
from shared.kv.allocator import BlockCounts
from shared.sampling.logprobs import TokenLogprob, TokenLogprobs
from shared.text.stopping import Finish, FinishReason
from shared.text.tokenizer import Tokenizer
from shared.worker.step_loop import ChunkLanded, LoopStopped, Retired, TokenSampled
from tests.tiny_models import EOS_TOKEN_ID, IM_END_ID, VOCAB_SIZE
from tests.unit.decode.generating import Desk, until
from tests.unit.decode.requests import generation_request, many_request
from tests.unit.kv.support import fill

MakeDesk = Callable[..., Desk]
PROMPT = (1, 2, 3, 4, 5, 6)
LENGTH = Finish(FinishReason.LENGTH)
STOP = Finish(FinishReason.STOP, matched_text="Z")
YES_OR_NO = Constraint(ConstraintKind.REGEX, "yes|no!")


def logprobs_of(*token_ids: int) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(TokenLogprob(token_id, -0.5, 1), ()) for token_id in token_ids)


class Elsewhere:
    """Computes the prompt and draws these tokens; the last KV comes when `kv_is_here` is set.

    Args:
        first: the first token of each completion.
        num_fetched: tokens whose KV comes.
        prompt_logprobs: of the prompt's tokens but the first; None where they do not come.
    """

    def __init__(
        self, first: str, num_fetched: int = 6, prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    ) -> None:
        self.first = first
        self.num_fetched = num_fetched
        self.prompt_logprobs = prompt_logprobs
        self.kv_is_here = asyncio.Event()
        self.was_left = False

    async def __call__(self, work: PrefillWork) -> AsyncGenerator[PrefillEvent]:
        try:
            yield Accepted(4)
            await asyncio.sleep(0)
            if self.prompt_logprobs is not None:
                yield PromptLogprobs(self.prompt_logprobs)
            for index, letter in enumerate(self.first):
                yield Drawn(ord(letter), index)
            await self.kv_is_here.wait()
            work.progress.num_fetched_tokens = self.num_fetched
        finally:
            self.was_left = True

    def at_once(self) -> Elsewhere:
        self.kv_is_here.set()
        return self


@pytest.fixture
def yes_or_no(tokenizer: Tokenizer) -> ConstraintMatcher:
    return ConstraintCompiler(tokenizer, VOCAB_SIZE).matcher(YES_OR_NO)


def names(made: Desk) -> list[str]:
    return made.loop.submitted_ids


async def test_first_tokens_go_out_before_the_last_kv_and_then_they_part(desk: MakeDesk) -> None:
    elsewhere = Elsewhere("xyz")
    made = desk(remote=elsewhere)
    caller = made.follow(many_request())
    first = [Started("a", 6, 4), Delta("x", (120,)), Delta("y", (121,), 1), Delta("z", (122,), 2)]
    assert await caller.has(4) == first
    assert (made.loop.submitted, made.counts.in_use, made.admission.num_admitted) == ([], 7, 3)
    fill(made.pool, range(1, 9))
    elsewhere.kv_is_here.set()
    sequences = await made.num_submitted(3)
    assert [sequence.token_ids for sequence in sequences] == [[*PROMPT, letter] for letter in b"xyz"]
    assert [sequence.indices for sequence in sequences] == [(0,), (1,), (2,)]
    assert all(sequence.is_decoding for sequence in sequences)
    tables = [sequence.block_table for sequence in sequences]
    assert {table[0] for table in tables} == {tables[0][0]}
    assert len({block for table in tables for block in table[1:]}) == 6
    fetched_to = made.remote.works[0].reservation.block_table
    assert all(made.pool.tensor[table[1]].flatten()[0] == fetched_to[1] for table in tables)
    for name, held in zip(names(made), [(5, 2), (3, 1), (0, 0)], strict=True):
        index = names(made).index(name)
        made.generator.on_events([TokenSampled(name, ord("b"), None, index)])
        made.generator.on_events([TokenSampled(name, ord("c"), LENGTH, index), Retired(name, None, 8)])
        assert (made.counts.in_use, made.admission.num_admitted) == held
    events = await caller.end()
    assert [event for event in events if isinstance(event, Finished)] == [Finished(LENGTH, index) for index in range(3)]
    assert made.value("generated_tokens") == 6, "the first ones were drawn elsewhere"
    assert made.is_idle


async def test_a_first_token_that_ends_one_of_them(desk: MakeDesk) -> None:
    elsewhere = Elsewhere("xZz").at_once()
    made = desk(remote=elsewhere)
    caller = made.follow(many_request(stop=("Z",)))
    sequences = await made.num_submitted(2)
    assert [sequence.indices for sequence in sequences] == [(0,), (2,)]
    assert (made.counts.in_use, made.admission.num_admitted) == (5, 2)
    assert caller.events[3] == Finished(STOP, 1)
    await caller.leave()
    for name in names(made):
        made.retire(name)
    assert made.is_idle


async def test_first_tokens_that_end_all_of_them(desk: MakeDesk) -> None:
    elsewhere = Elsewhere("ZZZ")
    made = desk(remote=elsewhere)
    events = await made.follow(many_request(stop=("Z",))).end()
    assert [event for event in events if isinstance(event, Finished)] == [Finished(STOP, index) for index in range(3)]
    assert elsewhere.was_left
    assert made.loop.submitted == []
    assert made.is_idle


async def test_leaving_while_kv_is_under_way(desk: MakeDesk) -> None:
    elsewhere = Elsewhere("xyz")
    made = desk(remote=elsewhere)
    caller = made.follow(many_request())
    await caller.has(4)
    await caller.leave()
    assert elsewhere.was_left
    assert made.is_idle
    assert (made.loop.submitted, made.loop.cancelled) == ([], [])


async def test_the_loop_stops_while_kv_is_under_way(desk: MakeDesk) -> None:
    elsewhere = Elsewhere("xyz")
    made = desk(remote=elsewhere)
    caller = made.follow(many_request())
    await caller.has(4)
    made.generator.on_events([LoopStopped("boom")])
    elsewhere.kv_is_here.set()
    with pytest.raises(UnavailableError, match="the engine has stopped"):
        await caller.end()
    assert made.loop.submitted == []
    assert made.is_idle


async def test_kv_that_is_lost_after_the_first_tokens(desk: MakeDesk, yes_or_no: ConstraintMatcher) -> None:
    """The rest is computed here, and what is drawn with it is known."""
    elsewhere = Elsewhere("yny", num_fetched=4).at_once()
    made = desk(remote=elsewhere)
    caller = made.follow(many_request(matcher=yes_or_no))
    (prompt,) = await made.num_submitted(1)
    assert (prompt.token_ids, prompt.num_computed_tokens, prompt.indices) == ([*PROMPT], 4, (0, 1, 2))
    again = [TokenSampled("a", ord(letter), None, index) for index, letter in enumerate("yny")]
    made.generator.on_events([ChunkLanded("a", 6), *again, Retired("a", None, 6)])
    sequences = (await made.num_submitted(4))[1:]
    assert [sequence.token_ids[6:] for sequence in sequences] == [[121], [110], [121]]
    matchers = [sequence.matcher for sequence in sequences]
    assert [m.allowed().nonzero()[0].tolist() for m in matchers if m is not None] == [[101], [111], [101]]
    assert len(caller.events) == 4
    assert made.value("generated_tokens") == 0
    await caller.leave()
    for sequence in sequences:
        made.retire(sequence.request_id)
    assert made.is_idle


async def test_one_had_ended_with_its_first_token_when_kv_was_lost(desk: MakeDesk) -> None:
    made = desk(remote=Elsewhere("Zyz", num_fetched=4).at_once())
    caller = made.follow(many_request(stop=("Z",)))
    await made.num_submitted(1)
    again = [TokenSampled("a", ord(letter), None, index) for index, letter in enumerate("Zyz")]
    made.generator.on_events([ChunkLanded("a", 6), *again, Retired("a", None, 6)])
    sequences = (await made.num_submitted(3))[1:]
    assert [sequence.indices for sequence in sequences] == [(1,), (2,)]
    assert (made.counts.in_use, made.admission.num_admitted) == (5, 2)
    assert made.loop.cancelled == []
    await caller.leave()
    for sequence in sequences:
        made.retire(sequence.request_id)
    assert made.is_idle


async def test_the_first_tokens_of_what_was_resumed_are_dropped(desk: MakeDesk, yes_or_no: ConstraintMatcher) -> None:
    made = desk(remote=Elsewhere("yny").at_once())
    caller = made.follow(many_request(resumed={1: b"no", 2: b"yes"}, matcher=yes_or_no))
    sequences = await made.num_submitted(2)
    assert [sequence.token_ids[6:] for sequence in sequences] == [[*b"y"], [*b"no"]]
    matchers = [sequence.matcher for sequence in sequences]
    assert [m.allowed().nonzero()[0].tolist() for m in matchers if m is not None] == [[101], [33]]
    assert caller.events == [Started("a", 6, 4), Finished(LENGTH, 2), Delta("y", (121,))]
    (work,) = made.remote.works
    assert work.request.input_token_ids == PROMPT
    await caller.leave()


async def test_the_only_one_that_is_left_goes_on_from_what_it_has(desk: MakeDesk) -> None:
    made = desk(remote=Elsewhere("xyz").at_once())
    caller = made.follow(many_request(resumed={0: b"abc", 1: b"ab", 2: b"abc"}))
    (only,) = await made.num_submitted(1)
    assert (only.token_ids, only.indices, only.num_computed_tokens) == ([*PROMPT, *b"ab"], (1,), 6)
    assert (only.is_decoding, only.num_remaining) == (False, 2)
    await caller.leave()


async def test_a_single_one_is_resumed_elsewhere(desk: MakeDesk) -> None:
    made = desk(remote=Elsewhere("c", num_fetched=8).at_once())
    stopping: dict[str, Any] = {"max_tokens": 6, "min_tokens": 2, "stop_token_ids": (5,)}
    caller = made.follow(many_request(1, resumed={0: b"ab"}, **stopping))
    (only,) = await made.num_submitted(1)
    assert (only.token_ids, only.num_computed_tokens) == ([*PROMPT, *b"abc"], 8)
    assert only.is_decoding
    assert caller.events == [Started("a", 6, 4), Delta("c", (99,))]
    (work,) = made.remote.works
    assert work.request.input_token_ids == (*PROMPT, *b"ab")
    assert work.banned_token_ids == (), "min_tokens were generated before"
    await caller.leave()


@pytest.mark.parametrize(("resumed", "banned"), [(b"a", (5, EOS_TOKEN_ID, IM_END_ID)), (b"ab", ())])
async def test_min_tokens_count_what_was_resumed(desk: MakeDesk, resumed: bytes, banned: tuple[int, ...]) -> None:
    made = desk(remote=Elsewhere("c"))
    caller = made.follow(many_request(1, resumed={0: resumed}, max_tokens=6, min_tokens=2, stop_token_ids=(5,)))
    await until(lambda: bool(made.remote.works))
    assert made.remote.works[0].banned_token_ids == banned
    await caller.leave()


async def test_a_constraint_that_cannot_go_on_from_a_first_token_is_not_prefills_fault(
    desk: MakeDesk, yes_or_no: ConstraintMatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advance(_matcher: ConstraintMatcher, _token_id: int) -> None:
        raise ConstraintError("too many items")

    monkeypatch.setattr(ConstraintMatcher, "advance", advance)
    made = desk(remote=Elsewhere("y"))
    caller = made.follow(many_request(1, matcher=yes_or_no, constraint=YES_OR_NO))
    with pytest.raises(InvalidRequestError, match=r"sampling\.regex cannot go on: too many items") as caught:
        await caller.end()
    assert caught.value.reason is Reason.CONSTRAINT_INVALID
    assert made.is_idle


@pytest.mark.parametrize("first", ["x", "nxy"])
async def test_a_first_token_that_the_constraint_forbids(
    desk: MakeDesk, yes_or_no: ConstraintMatcher, first: str
) -> None:
    elsewhere = Elsewhere(first)
    made = desk(remote=elsewhere)
    caller = made.follow(many_request(len(first), matcher=yes_or_no))
    with pytest.raises(UnavailableError, match="prefill drew token 120, which the constraint does not allow") as caught:
        await caller.end()
    assert caught.value.reason is Reason.PREFILL_PROTOCOL_VIOLATED
    assert caught.value.metadata == {"token_id": "120"}
    assert elsewhere.was_left
    assert made.is_idle


# Log-probabilities of the prompt


async def test_started_comes_with_the_prompts_logprobs(desk: MakeDesk) -> None:
    logprobs = logprobs_of(*PROMPT[1:])
    made = desk(remote=Elsewhere("xyz", prompt_logprobs=logprobs))
    caller = made.follow(many_request(prompt_logprobs=0))
    await caller.has(4)
    assert caller.events[0] == Started("a", 6, 4, logprobs)
    await caller.leave()
    assert made.is_idle


@pytest.mark.parametrize("num_completions", [1, 3])
async def test_started_waits_for_a_prompt_that_is_computed_here(desk: MakeDesk, num_completions: int) -> None:
    made = desk()
    caller = made.follow(many_request(num_completions, prompt_logprobs=0))
    (prompt,) = await made.num_submitted(1)
    assert prompt.prompt_logprobs == 0
    made.generator.on_events([ChunkLanded("a", 4, logprobs_of(2, 3, 4, 5))])
    for _ in range(3):
        await asyncio.sleep(0)
    assert caller.events == []
    first = [TokenSampled("a", letter, None, index) for index, letter in enumerate(b"xyz"[:num_completions])]
    made.generator.on_events([ChunkLanded("a", 6, logprobs_of(6)), *first])
    await caller.has(2)
    assert caller.events[:2] == [Started("a", 6, 0, logprobs_of(*PROMPT[1:])), Delta("x", (120,))]
    await caller.leave()
    made.retire("a")
    assert made.is_idle


async def test_a_prompt_whose_logprobs_are_wanted_begins_with_no_cached_blocks(desk: MakeDesk) -> None:
    made = desk()
    before = made.follow(generation_request("b", PROMPT, max_tokens=1))
    await made.submitted("b")
    made.generator.on_events([ChunkLanded("b", 6), TokenSampled("b", 120, LENGTH), Retired("b", None, 6)])
    await before.end()
    assert made.counts == BlockCounts(free=7, cached=1, in_use=0)
    caller = made.follow(many_request(prompt_logprobs=0))
    await made.submitted("a")
    assert made.loop.submitted[-1].num_computed_tokens == 0
    made.generator.on_events([ChunkLanded("a", 6, logprobs_of(*PROMPT[1:])), TokenSampled("a", 120, None, 0)])
    (started,) = [event for event in await caller.has(1) if isinstance(event, Started)]
    assert started.num_cached_tokens == 0
    await caller.leave()
    made.retire("a", num_computed_tokens=6)
    assert made.is_idle


async def test_a_prompt_that_is_lost_before_its_logprobs_came_is_computed_whole(desk: MakeDesk) -> None:
    async def half(work: PrefillWork) -> AsyncGenerator[PrefillEvent]:
        yield Accepted(0)
        work.progress.num_fetched_tokens = 4

    made = desk(remote=half)
    caller = made.follow(many_request(prompt_logprobs=0))
    (prompt,) = await made.num_submitted(1)
    assert prompt.num_computed_tokens == 0
    assert caller.events == []
    first = [TokenSampled("a", letter, None, index) for index, letter in enumerate(b"xyz")]
    landed = ChunkLanded("a", 6, logprobs_of(*PROMPT[1:]))
    made.generator.on_events([landed, *first, Retired("a", None, 6)])
    await made.num_submitted(4)
    assert caller.events[0] == Started("a", 6, 0, logprobs_of(*PROMPT[1:]))
    await caller.leave()


async def test_a_prompt_that_is_lost_after_its_logprobs_goes_on_from_what_is_here(desk: MakeDesk) -> None:
    logprobs = logprobs_of(*PROMPT[1:])
    made = desk(remote=Elsewhere("x", num_fetched=4, prompt_logprobs=logprobs).at_once())
    caller = made.follow(many_request(1, prompt_logprobs=0))
    (sequence,) = await made.num_submitted(1)
    assert (sequence.token_ids, sequence.num_computed_tokens) == ([*PROMPT, 120], 4)
    made.generator.on_events([ChunkLanded("a", 7, logprobs_of(6)), TokenSampled("a", 121, None)])
    await caller.has(3)
    assert caller.events == [Started("a", 6, 4, logprobs), Delta("x", (120,)), Delta("y", (121,))]
    await caller.leave()


async def test_cached_tokens_of_a_resumed_text_are_those_of_the_prompt(desk: MakeDesk) -> None:
    made = desk()
    request = many_request(1, max_tokens=9)
    caller = made.follow(request)
    await made.submitted("a")
    made.generator.on_events([ChunkLanded("a", 6)])
    made.sample("a", "xyzuvw")
    await caller.has(7)
    await caller.leave()
    made.retire("a", num_computed_tokens=11)
    again = made.follow(replace(request, request_id="b", resumed={0: tuple(b"xyzuvw")}))
    await made.submitted("b")
    assert made.loop.submitted[-1].num_computed_tokens == 8
    assert await again.has(1) == [Started("b", 6, 6)]
    assert made.value("cached_tokens") == 6
    await again.leave()
