"""Several completions of one prompt that is computed here: how they part, and what each leaves behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import pytest

from decode_service import generator
from decode_service.lanes import copy_block
from decode_service.request import Delta, Finished, GenerationEvent, GenerationRequest, Started, Usage
from shared.constraints.compiler import ConstraintCompiler
from shared.constraints.constraint import Constraint, ConstraintKind
from shared.constraints.matcher import ConstraintMatcher
from shared.errors import BatonError, DeadlineError, InvalidRequestError, Reason
from shared.kv.pool import KvPool
from shared.kv.transports.copier import Abandoned
from shared.text.stopping import Finish, FinishReason
from shared.text.tokenizer import Tokenizer
from shared.worker.step_loop import ChunkLanded, LoopStopped, Retired, StepEvent, TokenSampled
from tests.tiny_models import VOCAB_SIZE
from tests.unit.decode.generating import WAIT_S, Desk, Following, until
from tests.unit.decode.requests import generation_request, many_request
from tests.unit.kv.support import fill

MakeDesk = Callable[..., Desk]
PROMPT = (1, 2, 3, 4, 5, 6)
"""One block of four tokens, and half of the next."""
LENGTH = Finish(FinishReason.LENGTH)
STOP = Finish(FinishReason.STOP, matched_text="Z")
YES_OR_NO = Constraint(ConstraintKind.REGEX, "yes|no!")


def drawn(text: str, indices: Sequence[int] = (0, 1, 2), name: str = "a") -> list[StepEvent]:
    """The step that ends the prompt draws the first token of each completion."""
    tokens = (TokenSampled(name, ord(letter), None, index) for index, letter in zip(indices, text, strict=True))
    return [ChunkLanded(name, 6), *tokens, Retired(name, None, 6)]


async def parted(made: Desk, request: GenerationRequest, first: str = "xyz") -> tuple[Following, list[str]]:
    """A caller whose three completions go on by themselves, and the names of their sequences."""
    caller = made.follow(request)
    await made.submitted("a")
    made.generator.on_events(drawn(first))
    sequences = await made.num_submitted(4)
    return caller, [sequence.request_id for sequence in sequences[1:]]


async def failure(caller: Following) -> BatonError:
    with pytest.raises(BatonError) as caught:
        await caller.end()
    return caught.value


def told(events: list[GenerationEvent], index: int) -> tuple[str, Finish | None]:
    """Text and end of one completion."""
    text = "".join(event.text for event in events if isinstance(event, Delta) and event.index == index)
    ends = [event.finish for event in events if isinstance(event, Finished) and event.index == index]
    assert len(ends) <= 1
    return text, ends[0] if ends else None


def holds(made: Desk) -> tuple[int, int]:
    """Blocks in use and rows taken."""
    return made.counts.in_use, made.admission.num_admitted


class SlowCopies:
    """Copies that wait in their thread until `may_go` is set."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_go = threading.Event()

    def __call__(self, pool: KvPool, block_ids: Sequence[int], is_abandoned: Abandoned) -> None:
        self.has_begun.set()
        assert self.may_go.wait(WAIT_S)
        copy_block(pool, block_ids, is_abandoned)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowCopies]:
    slow = SlowCopies()
    monkeypatch.setattr(generator, "copy_block", slow)
    yield slow
    slow.may_go.set()


@pytest.fixture
def yes_or_no(tokenizer: Tokenizer) -> ConstraintMatcher:
    return ConstraintCompiler(tokenizer, VOCAB_SIZE).matcher(YES_OR_NO)


async def test_one_prompt_then_three_sequences_of_their_own(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(many_request())
    (prompt,) = await made.num_submitted(1)
    assert (prompt.token_ids, prompt.num_computed_tokens, prompt.indices) == ([*PROMPT], 0, (0, 1, 2))
    assert holds(made) == (7, 3), "nine tokens in three blocks, of which two more completions share one"
    fill(made.pool, range(1, 9))
    made.generator.on_events(drawn("xyz"))
    sequences = (await made.num_submitted(4))[1:]
    assert [sequence.token_ids for sequence in sequences] == [[*PROMPT, letter] for letter in b"xyz"]
    assert [sequence.indices for sequence in sequences] == [(0,), (1,), (2,)]
    assert {sequence.num_computed_tokens for sequence in sequences} == {6}
    assert len({sequence.request_id for sequence in sequences}) == 3
    tables = [sequence.block_table for sequence in sequences]
    assert tables[0] == prompt.block_table
    assert {table[0] for table in tables} == {prompt.block_table[0]}, "the full block is shared"
    assert len({block for table in tables for block in table[1:]}) == 6, "the others are not"
    for table in tables:
        assert made.pool.tensor[table[1]].equal(made.pool.tensor[prompt.block_table[1]])
        assert made.pool.tensor[table[1]].flatten()[0] == prompt.block_table[1], "the copy is of this very block"
    assert await caller.has(4) == [
        Started("a", 6, 0),
        Delta("x", (120,)),
        Delta("y", (121,), 1),
        Delta("z", (122,), 2),
    ]
    await caller.leave()


async def test_a_prompt_that_ends_with_a_block_is_not_copied(desk: MakeDesk, copies: SlowCopies) -> None:
    made = desk()
    caller = made.follow(many_request(prompt=(1, 2, 3, 4)))
    await made.submitted("a")
    assert holds(made) == (4, 3)
    made.generator.on_events(drawn("xyz"))
    await made.num_submitted(4)
    assert not copies.has_begun.is_set()
    await caller.leave()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
async def test_each_gives_its_row_and_blocks_back_at_its_end(desk: MakeDesk, order: tuple[int, ...]) -> None:
    made = desk()
    caller, names = await parted(made, many_request())
    for index in range(3):
        made.generator.on_events([TokenSampled(names[index], ord("b"), None, index)])
    held = [(5, 2), (3, 1), (0, 0)]
    for index, expected in zip(order, held, strict=True):
        made.generator.on_events([TokenSampled(names[index], ord("c"), LENGTH, index), Retired(names[index], None, 8)])
        assert holds(made) == expected
    events = await caller.end()
    assert [told(events, index) for index in range(3)] == [("xbc", LENGTH), ("ybc", LENGTH), ("zbc", LENGTH)]
    usage = events[-1]
    assert isinstance(usage, Usage)
    assert (usage.prompt_len, usage.num_completion_tokens) == (6, 9)
    assert made.is_idle
    assert made.loop.cancelled == []
    counts = [made.value(f"{name}_tokens") for name in ("prompt", "cached", "generated")]
    assert counts == [6, 0, 9]


async def test_one_that_ends_by_its_text_is_computed_no_further(desk: MakeDesk) -> None:
    made = desk()
    caller, names = await parted(made, many_request(stop=("Z",)))
    made.generator.on_events([TokenSampled(names[1], ord("Z"), None, 1)])
    await until(lambda: made.loop.cancelled == [names[1]])
    made.generator.on_events([TokenSampled(names[1], ord("b"), LENGTH, 1), Retired(names[1], None, 8)])
    assert holds(made) == (5, 2)
    await caller.has(6)
    assert told(caller.events, 1) == ("y", STOP), "what was drawn after the end is nobody's"
    await caller.leave()
    made.retire(names[0])
    made.retire(names[2])
    assert made.is_idle


async def test_those_that_end_with_their_first_token_never_go_on(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(many_request(stop=("Z",)))
    await made.submitted("a")
    made.generator.on_events(drawn("ZyZ"))
    _, only = await made.num_submitted(2)
    assert (only.token_ids, only.indices) == ([*PROMPT, ord("y")], (1,))
    assert holds(made) == (3, 1)
    made.generator.on_events([TokenSampled(only.request_id, ord("Z"), None, 1)])
    events = await caller.end()
    assert [told(events, index) for index in range(3)] == [("", STOP), ("y", STOP), ("", STOP)]
    made.retire(only.request_id, num_computed_tokens=7)
    assert made.is_idle


@pytest.mark.parametrize("options", [{"max_tokens": 1}, {"stop": ("Z",)}])
async def test_all_end_with_their_first_token(desk: MakeDesk, options: dict[str, Any]) -> None:
    made = desk()
    caller = made.follow(many_request(**options))
    await made.submitted("a")
    made.generator.on_events(drawn("ZZZ"))
    events = await caller.end()
    assert [type(event) for event in events] == [Started, *[Delta, Finished] * 3, Usage]
    assert len(made.loop.submitted) == 1
    assert made.is_idle


async def test_leaving_while_the_prompt_is_computed(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(many_request())
    await made.submitted("a")
    await caller.leave()
    assert made.loop.cancelled == ["a"]
    assert holds(made) == (3, 1), "no step touches those of the others"
    made.generator.on_events(drawn("xyz"))
    assert made.is_idle
    assert len(made.loop.submitted) == 1


async def unread(made: Desk, request: GenerationRequest) -> AsyncGenerator[GenerationEvent]:
    """A caller that has read one first token; the others, and the parting, are in its queue."""
    events = made.generator.generate(request, WAIT_S)
    await anext(events)
    pending = asyncio.ensure_future(anext(events))
    await made.submitted("a")
    made.generator.on_events(drawn("xyz"))
    assert await pending == Delta("x", (120,))
    return events


async def test_leaving_between_the_last_first_token_and_parting(desk: MakeDesk) -> None:
    made = desk()
    events = await unread(made, many_request())
    await events.aclose()
    assert made.is_idle
    assert (len(made.loop.submitted), made.loop.cancelled) == (1, [])


async def test_leaving_while_the_open_block_is_copied(desk: MakeDesk, copies: SlowCopies) -> None:
    made = desk()
    caller = made.follow(many_request())
    await made.submitted("a")
    made.generator.on_events(drawn("xyz"))
    await until(copies.has_begun.is_set)
    caller.task.cancel()
    await asyncio.wait({caller.task}, timeout=0.02)
    assert holds(made) == (7, 3), "the copy is still being written"
    copies.may_go.set()
    await asyncio.wait({caller.task})
    assert caller.task.cancelled()
    assert made.is_idle
    assert len(made.loop.submitted) == 1


async def test_leaving_after_one_has_ended(desk: MakeDesk) -> None:
    made = desk()
    caller, names = await parted(made, many_request(stop=("Z",)))
    made.generator.on_events([TokenSampled(names[0], ord("Z"), None, 0)])
    await caller.has(6)
    await caller.leave()
    assert sorted(made.loop.cancelled) == sorted(names), "each once"
    for name, held in zip(names, [(5, 2), (3, 1), (0, 0)], strict=True):
        assert made.generator.num_live == 1
        made.retire(name, num_computed_tokens=6)
        assert holds(made) == held
    assert made.is_idle


async def test_a_step_that_fails_with_the_prompt(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(many_request())
    await made.submitted("a")
    made.retire("a", error="no memory")
    assert (await failure(caller)).message == "a step failed: no memory"
    assert made.is_idle


async def test_a_step_that_fails_with_one_of_them_ends_all(desk: MakeDesk) -> None:
    made = desk()
    caller, names = await parted(made, many_request())
    made.retire(names[1], error="no memory")
    assert (await failure(caller)).reason is Reason.ENGINE_FAILED
    assert sorted(made.loop.cancelled) == sorted([names[0], names[2]])
    made.retire(names[0])
    assert not made.is_idle
    made.retire(names[2])
    assert made.is_idle


async def test_a_step_that_fails_with_all_of_them(desk: MakeDesk) -> None:
    made = desk()
    caller, names = await parted(made, many_request())
    made.generator.on_events([Retired(name, "no memory") for name in names])
    assert (await failure(caller)).reason is Reason.ENGINE_FAILED
    assert made.is_idle
    assert made.loop.cancelled == []


async def test_the_loop_stops_while_the_prompt_is_computed(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(many_request())
    await made.submitted("a")
    made.generator.on_events([LoopStopped("boom")])
    assert (await failure(caller)).message == "the engine has stopped: boom"
    assert made.is_idle


async def test_the_loop_stops_before_they_part(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(many_request())
    await made.submitted("a")
    made.generator.on_events([*drawn("xyz"), LoopStopped("boom")])
    assert (await failure(caller)).message == "the engine has stopped: boom"
    assert len(caller.events) == 4, "what came before is delivered"
    assert made.is_idle


async def test_the_loop_stops_while_the_open_block_is_copied(desk: MakeDesk, copies: SlowCopies) -> None:
    made = desk()
    caller = made.follow(many_request())
    await made.submitted("a")
    made.generator.on_events(drawn("xyz"))
    await until(copies.has_begun.is_set)
    made.generator.on_events([LoopStopped("boom")])
    assert holds(made) == (7, 3), "the copy is still being written"
    copies.may_go.set()
    assert (await failure(caller)).message == "the engine has stopped: boom"
    assert len(made.loop.submitted) == 1
    assert made.is_idle


@pytest.mark.parametrize("has_left", [False, True])
async def test_the_loop_stops_when_one_of_them_is_over(desk: MakeDesk, has_left: bool) -> None:
    made = desk()
    caller, names = await parted(made, many_request())
    made.retire(names[2], num_computed_tokens=6)
    if has_left:
        await caller.leave()
    made.generator.on_events([LoopStopped("boom")])
    if not has_left:
        await failure(caller)
    assert made.is_idle


async def test_time_runs_out_when_they_have_parted(desk: MakeDesk) -> None:
    made = desk()
    caller = Following(made.generator.generate(many_request(), 0.2))
    await made.submitted("a")
    made.generator.on_events(drawn("xyz"))
    sequences = await made.num_submitted(4)
    assert isinstance(await failure(caller), DeadlineError)
    names = [sequence.request_id for sequence in sequences[1:]]
    assert sorted(made.loop.cancelled) == sorted(names)
    for name in names:
        made.retire(name)
    assert made.is_idle


async def test_all_that_can_be_published_fits_the_queue_of_a_caller_that_does_not_read(desk: MakeDesk) -> None:
    made = desk()
    events = await unread(made, many_request())
    # Read to the parting, and no further.
    seen = [await anext(events), await anext(events)]
    pending = asyncio.ensure_future(anext(events))
    names = [sequence.request_id for sequence in (await made.num_submitted(4))[1:]]
    for index, name in enumerate(names):
        made.generator.on_events([TokenSampled(name, ord("b"), None, index)])
    made.generator.on_events([Retired(name, "no memory") for name in names])
    made.generator.on_events([LoopStopped("boom")])
    assert [*seen, await pending] == [Delta("y", (121,), 1), Delta("z", (122,), 2), Delta("b", (98,))]
    await events.aclose()
    assert made.is_idle


async def test_the_constraint_of_each_has_moved_by_its_own_token(desk: MakeDesk, yes_or_no: ConstraintMatcher) -> None:
    made = desk()
    caller = made.follow(many_request(matcher=yes_or_no))
    (prompt,) = await made.num_submitted(1)
    assert prompt.matcher is not None
    assert prompt.matcher.allowed().nonzero()[0].tolist() == [ord("n"), ord("y")]
    made.generator.on_events(drawn("yny"))
    matchers = [sequence.matcher for sequence in (await made.num_submitted(4))[1:]]
    assert [m.allowed().nonzero()[0].tolist() for m in matchers if m is not None] == [[101], [111], [101]]
    assert len({id(matcher) for matcher in matchers}) == 3
    await caller.leave()


async def test_a_constraint_that_cannot_go_on_fails_its_own_request_alone(
    desk: MakeDesk, yes_or_no: ConstraintMatcher
) -> None:
    made = desk(max_num_seqs=5)
    caller = made.follow(many_request(prompt=(1, 2), max_tokens=2, matcher=yes_or_no, constraint=YES_OR_NO))
    other = made.follow(generation_request("b", (7,), max_tokens=1))
    await made.submitted("a")
    await made.submitted("b")
    made.generator.on_events([*drawn("y?n"), TokenSampled("b", ord("k"), LENGTH), Retired("b", None, 1)])
    assert (await other.end())[1:3] == [Delta("k", (107,)), Finished(LENGTH)]
    error = await failure(caller)
    assert isinstance(error, InvalidRequestError)
    assert error.reason is Reason.CONSTRAINT_INVALID
    assert error.message.startswith("sampling.regex cannot go on: token 63 cannot follow")
    assert error.metadata["field"] == "sampling.regex"
    assert len(made.loop.submitted) == 2
    assert made.is_idle


async def test_what_was_resumed_goes_on_where_it_was(desk: MakeDesk) -> None:
    """One goes on from two tokens, one had ended, and one begins."""
    made = desk()
    caller = made.follow(many_request(resumed={1: b"pq", 2: b"rst"}))
    (prompt,) = await made.num_submitted(1)
    assert (prompt.token_ids, prompt.indices) == ([*PROMPT], (0, 1))
    assert holds(made) == (5, 2), "nothing is held for what has ended"
    assert await caller.has(2) == [Started("a", 6, 0), Finished(LENGTH, 2)]
    made.generator.on_events(drawn("xp", indices=(0, 1)))
    first, second = (await made.num_submitted(3))[1:]
    assert (first.token_ids, first.indices) == ([*PROMPT, *b"x"], (0,))
    assert (second.token_ids, second.indices, second.num_computed_tokens) == ([*PROMPT, *b"pq"], (1,), 6)
    made.generator.on_events([TokenSampled(second.request_id, ord("u"), LENGTH, 1), Retired(second.request_id)])
    made.generator.on_events([TokenSampled(first.request_id, ord("b"), None, 0)])
    made.generator.on_events([TokenSampled(first.request_id, ord("c"), LENGTH, 0), Retired(first.request_id)])
    events = await caller.end()
    assert [told(events, index) for index in range(3)] == [("xbc", LENGTH), ("u", LENGTH), ("", LENGTH)]
    usage = events[-1]
    assert isinstance(usage, Usage)
    assert usage.num_completion_tokens == 9
    assert made.value("generated_tokens") == 4, "the one that was drawn again is nobody's"
    assert made.is_idle


async def test_all_were_resumed(desk: MakeDesk, yes_or_no: ConstraintMatcher) -> None:
    made = desk()
    caller = made.follow(many_request(resumed={0: b"y", 1: b"n", 2: b"ye"}, matcher=yes_or_no))
    await made.submitted("a")
    made.generator.on_events(drawn("yny"))
    sequences = (await made.num_submitted(4))[1:]
    assert [sequence.token_ids[6:] for sequence in sequences] == [[*b"y"], [*b"n"], [*b"ye"]]
    matchers = [sequence.matcher for sequence in sequences]
    assert [m.allowed().nonzero()[0].tolist() for m in matchers if m is not None] == [[101], [111], [115]]
    assert made.value("generated_tokens") == 0
    await caller.leave()


async def test_the_only_one_that_is_left_needs_no_parting(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(many_request(resumed={0: b"abc", 1: b"abc", 2: b"ab"}))
    (only,) = await made.num_submitted(1)
    assert (only.token_ids, only.indices, only.num_computed_tokens) == ([*PROMPT, *b"ab"], (2,), 0)
    made.generator.on_events([ChunkLanded("a", 8), TokenSampled("a", ord("x"), LENGTH, 2), Retired("a", None, 8)])
    assert (await caller.end())[:-1] == [
        Started("a", 6, 0),
        Finished(LENGTH, 0),
        Finished(LENGTH, 1),
        Delta("x", (120,), 2),
        Finished(LENGTH, 2),
    ]
    assert len(made.loop.submitted) == 1
    assert made.is_idle


async def test_all_had_ended(desk: MakeDesk) -> None:
    made = desk(max_num_seqs=3)
    caller = made.follow(many_request(resumed={0: b"abc", 1: b"xZ", 2: b"Z"}, stop=("Z",)))
    *events, usage = await caller.end()
    assert events == [Started("a", 6, 0), Finished(LENGTH, 0), Finished(STOP, 1), Finished(STOP, 2)]
    assert isinstance(usage, Usage)
    assert usage.num_completion_tokens == 6
    assert made.loop.submitted == []
    assert made.is_idle


async def test_what_cannot_have_been_generated_leaves_nothing_behind(desk: MakeDesk) -> None:
    made = desk()
    error = await failure(made.follow(many_request(resumed={1: b"Zx"}, stop=("Z",))))
    assert isinstance(error, InvalidRequestError)
    assert error.reason is Reason.RESUME_INVALID
    assert made.is_idle


async def test_leaving_the_queue_with_several(desk: MakeDesk) -> None:
    made = desk(max_num_seqs=3)
    running = made.follow(generation_request("b", (1,)))
    await made.submitted("b")
    waiting = made.follow(many_request())
    await until(lambda: made.admission.num_waiting == 1)
    await waiting.leave()
    assert (made.admission.num_waiting, made.generator.num_live, made.admission.num_admitted) == (0, 1, 1)
    await running.leave()


async def test_a_constraint_that_a_step_cannot_follow_is_the_requests_fault(
    desk: MakeDesk, yes_or_no: ConstraintMatcher
) -> None:
    made = desk()
    caller = made.follow(many_request(1, prompt=(1, 2), matcher=yes_or_no, constraint=YES_OR_NO))
    await made.submitted("a")
    made.generator.on_events([ChunkLanded("a", 2), Retired("a", "too many items", is_constraint=True)])
    error = await failure(caller)
    assert isinstance(error, InvalidRequestError)
    assert error.reason is Reason.CONSTRAINT_INVALID
    assert error.metadata == {"field": "sampling.regex", "detail": "too many items"}
    assert made.is_idle
