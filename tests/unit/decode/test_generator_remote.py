"""A request whose prompt is computed elsewhere, seen from the generator."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from decode_service.completion import Drawn
from decode_service.prefill_stream import Accepted, PrefillEvent, PrefillWork
from decode_service.request import Delta, Finished, Started, Usage
from shared.errors import Reason, UnavailableError
from shared.text.stopping import Finish, FinishReason, StoppingParams
from shared.worker.step_loop import LoopStopped
from tests.tiny_models import EOS_TOKEN_ID, IM_END_ID
from tests.unit.decode.generating import Desk, until
from tests.unit.decode.requests import generation_request

MakeDesk = Callable[..., Desk]
PROMPT = tuple(range(10))


class Elsewhere:
    """Computes the prompt; the last KV comes when `kv_is_here` is set."""

    def __init__(self, token_id: int = ord("H"), error: Exception | None = None) -> None:
        self.token_id = token_id
        self.error = error
        self.kv_is_here = asyncio.Event()
        self.was_left = False

    async def __call__(self, work: PrefillWork) -> AsyncGenerator[PrefillEvent]:
        try:
            yield Accepted(4)
            if self.error is not None:
                raise self.error
            yield Drawn(self.token_id)
            await self.kv_is_here.wait()
            work.progress.num_fetched_tokens = work.request.prompt_len
            work.progress.transfer_s = 0.5
        finally:
            self.was_left = True


async def test_the_first_token_goes_out_before_the_last_kv_is_here(desk: MakeDesk) -> None:
    elsewhere = Elsewhere()
    made = desk(remote=elsewhere)
    caller = made.follow(generation_request("a", PROMPT, max_tokens=2))
    assert await caller.has(2) == [Started("a", 10, 4), Delta("H", (72,))]
    assert made.loop.submitted == []
    elsewhere.kv_is_here.set()
    await made.submitted("a")
    (sequence,) = made.loop.submitted
    assert (sequence.token_ids, sequence.prompt_len) == ([*PROMPT, 72], 10)
    assert sequence.num_computed_tokens == 10
    made.sample("a", "i")
    made.retire("a", num_computed_tokens=11)
    *events, usage = await caller.end()
    assert events[2:] == [Delta("i", (105,)), Finished(Finish(FinishReason.LENGTH))]
    assert isinstance(usage, Usage)
    assert (usage.num_completion_tokens, usage.num_cached_tokens, usage.kv_transfer_s) == (2, 4, 0.5)
    assert made.is_idle


@pytest.mark.parametrize(
    ("token_id", "options", "finish"),
    [
        (EOS_TOKEN_ID, {"max_tokens": 9}, Finish(FinishReason.STOP, matched_token_id=EOS_TOKEN_ID)),
        (72, {"max_tokens": 9, "stop_token_ids": (72,)}, Finish(FinishReason.STOP, matched_token_id=72)),
        (72, {"max_tokens": 9, "stop": ("H",)}, Finish(FinishReason.STOP, matched_text="H")),
        (72, {"max_tokens": 1}, Finish(FinishReason.LENGTH)),
    ],
    ids=["end of sequence", "stop token", "stop string", "max_tokens 1"],
)
async def test_a_first_token_that_ends_it(
    desk: MakeDesk, token_id: int, options: dict[str, object], finish: Finish
) -> None:
    elsewhere = Elsewhere(token_id)
    made = desk(remote=elsewhere)
    stopping = StoppingParams(**options)  # type: ignore[arg-type]  # options by name
    caller = made.follow(generation_request("a", PROMPT, stopping.max_tokens, stopping=stopping))
    assert (await caller.end())[-2] == Finished(finish)
    assert elsewhere.was_left
    assert made.loop.submitted == []
    assert made.is_idle


async def test_a_stop_string_that_spans_both_services(desk: MakeDesk) -> None:
    elsewhere = Elsewhere()
    elsewhere.kv_is_here.set()
    made = desk(remote=elsewhere)
    stopping = StoppingParams(max_tokens=9, stop=("Hi",))
    caller = made.follow(generation_request("a", PROMPT, max_tokens=9, stopping=stopping))
    await made.submitted("a")
    made.sample("a", "i")
    assert (await caller.end())[1:-1] == [
        Delta("", (72,)),
        Delta("", (105,)),
        Finished(Finish(FinishReason.STOP, matched_text="Hi")),
    ]
    made.retire("a")
    assert made.is_idle


async def test_what_may_not_come_first_is_told(desk: MakeDesk) -> None:
    made = desk(remote=Elsewhere())
    stopping = StoppingParams(max_tokens=9, min_tokens=1, stop_token_ids=(5,))
    caller = made.follow(generation_request("a", PROMPT, max_tokens=9, stopping=stopping))
    await caller.has(2)
    (work,) = made.remote.works
    assert work.banned_token_ids == (5, EOS_TOKEN_ID, IM_END_ID)
    await caller.leave()


async def test_leaving_while_kv_is_under_way_frees_all_at_once(desk: MakeDesk) -> None:
    elsewhere = Elsewhere()
    made = desk(remote=elsewhere)
    caller = made.follow(generation_request("a", PROMPT))
    await caller.has(2)
    await caller.leave()
    assert elsewhere.was_left
    assert made.is_idle
    assert (made.loop.submitted, made.loop.cancelled) == ([], [])


async def test_a_prompt_that_could_not_be_computed(desk: MakeDesk) -> None:
    made = desk(remote=Elsewhere(error=UnavailableError("all failed", Reason.PREFILL_FAILED)))
    caller = made.follow(generation_request("a", PROMPT))
    with pytest.raises(UnavailableError, match="all failed"):
        await caller.end()
    assert caller.events == [Started("a", 10, 4)]
    assert made.is_idle


async def test_a_stopped_loop_fails_what_comes_back_from_elsewhere(desk: MakeDesk) -> None:
    elsewhere = Elsewhere()
    made = desk(remote=elsewhere)
    caller = made.follow(generation_request("a", PROMPT))
    await caller.has(2)
    made.generator.on_events([LoopStopped("boom")])
    elsewhere.kv_is_here.set()
    with pytest.raises(UnavailableError, match="the engine has stopped: boom"):
        await caller.end()
    assert made.loop.submitted == []
    assert made.is_idle


async def test_a_prompt_left_to_this_service(desk: MakeDesk) -> None:
    async def nobody(work: PrefillWork) -> AsyncGenerator[PrefillEvent]:
        work.progress.num_fetched_tokens = 8
        return
        yield  # an async generator

    made = desk(remote=nobody)
    caller = made.follow(generation_request("a", PROMPT))
    await made.submitted("a")
    assert await caller.has(1) == [Started("a", 10, 8)]
    (sequence,) = made.loop.submitted
    assert (sequence.token_ids, sequence.num_computed_tokens) == (list(PROMPT), 8)
    await caller.leave()


async def test_the_rest_of_a_prompt_left_to_this_service_after_its_first_token(desk: MakeDesk) -> None:
    async def half(work: PrefillWork) -> AsyncGenerator[PrefillEvent]:
        yield Accepted(0)
        work.progress.num_fetched_tokens = 4
        yield Drawn(72)

    made = desk(remote=half)
    caller = made.follow(generation_request("a", PROMPT))
    await made.submitted("a")
    (sequence,) = made.loop.submitted
    assert (sequence.token_ids, sequence.num_computed_tokens) == ([*PROMPT, 72], 4)
    assert (sequence.is_decoding, sequence.num_remaining) == (False, 7)
    await caller.leave()


@pytest.mark.parametrize(("limit", "is_local"), [(9, False), (10, True)])
async def test_a_short_prompt_is_computed_here(desk: MakeDesk, limit: int, is_local: bool) -> None:
    made = desk(remote=Elsewhere(), local_prefill_max_tokens=limit)
    caller = made.follow(generation_request("a", PROMPT))
    await until(lambda: bool(made.loop.submitted or made.remote.works))
    assert (len(made.loop.submitted), len(made.remote.works)) == ((1, 0) if is_local else (0, 1))
    await caller.leave()


async def test_a_text_that_ends_with_the_first_token_keeps_its_blocks_until_no_fetch_writes_to_them(
    desk: MakeDesk,
) -> None:
    num_in_use_at_the_end: list[int] = []

    async def fetching(_: PrefillWork) -> AsyncGenerator[PrefillEvent]:
        try:
            yield Accepted(0)
            yield Drawn(72)
        finally:
            await asyncio.sleep(0.01)  # as a copy that is waited for
            num_in_use_at_the_end.append(made.counts.in_use)

    made = desk(remote=fetching)
    await made.follow(generation_request("a", PROMPT, max_tokens=1)).end()
    assert num_in_use_at_the_end == [3], "10 prompt tokens and 1 generated one, in blocks of 4"
    assert made.is_idle
