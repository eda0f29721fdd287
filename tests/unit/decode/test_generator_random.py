"""Whatever happens to several completions, and when: all they held is free once the step loop has let go."""

from __future__ import annotations

import asyncio
import random
import time
from itertools import count
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from decode_service.request import Delta, Finished, Usage
from shared.errors import BatonError
from shared.kv.pool import KvPool
from shared.text.tokenizer import Tokenizer
from shared.worker.sequence import Sequence
from shared.worker.step_loop import ChunkLanded, LoopStopped, Retired, StepEvent, TokenSampled
from tests.unit.decode.generating import WAIT_S, Desk, Following
from tests.unit.decode.requests import many_request
from tests.unit.kv.support import LAYOUT

What = Literal["nothing", "leave", "a step fails", "the loop stops"]
MAX_TOKENS = 3


class Stepper:
    """Steps what the desk's loop was given: every sequence, a token at a time, at random a "Z", which is a stop."""

    def __init__(self, made: Desk, chance: random.Random) -> None:
        self._made = made
        self._chance = chance
        self._computing: dict[str, Sequence] = {}
        self._num_taken = 0

    @property
    def has_work(self) -> bool:
        return bool(self._computing) or len(self._made.loop.submitted) > self._num_taken

    def step(self, *, fails: bool = False) -> None:
        submitted = self._made.loop.submitted[self._num_taken :]
        self._num_taken += len(submitted)
        self._computing |= {sequence.request_id: sequence for sequence in submitted}
        events: list[StepEvent] = []
        for name, sequence in list(self._computing.items()):
            if name in self._made.loop.cancelled:
                events.append(self._retired(name))
            elif fails and self._chance.random() < 0.5:
                events.append(self._retired(name, "no memory"))
            else:
                events += self._drawn(name, sequence)
        self._made.generator.on_events(events)

    def stop(self) -> None:
        self._computing.clear()
        self._num_taken = len(self._made.loop.submitted)
        self._made.generator.on_events([LoopStopped("boom")])

    def _drawn(self, name: str, sequence: Sequence) -> list[StepEvent]:
        events: list[StepEvent] = []
        if not sequence.is_decoding:
            events.append(ChunkLanded(name, len(sequence.token_ids)))
        sequence.num_computed_tokens = len(sequence.token_ids)
        letters = [self._chance.choice(b"abZ") for _ in sequence.indices]
        events += [TokenSampled(name, letter, None, i) for i, letter in zip(sequence.indices, letters, strict=True)]
        if len(sequence.indices) > 1 or sequence.num_generated + 1 == MAX_TOKENS:
            events.append(self._retired(name))
        else:
            sequence.token_ids.append(letters[0])
        return events

    def _retired(self, name: str, error: str | None = None) -> Retired:
        return Retired(name, error, self._computing.pop(name).num_computed_tokens)


async def run(made: Desk, resumed: dict[int, bytes], num_completions: int, what: What, when: int, seed: int) -> None:
    stepper = Stepper(made, random.Random(seed))
    caller = made.follow(many_request(num_completions, resumed=resumed, stop=("Z",)))
    deadline_s = time.monotonic() + WAIT_S
    for turn in count():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0)  # what waits for a thread takes any number of turns
        if turn == when and what == "leave":
            caller.task.cancel()
        elif turn == when and what == "the loop stops":
            stepper.stop()
        elif stepper.has_work and turn % 3 == 0:
            stepper.step(fails=what == "a step fails" and turn >= when)
        if caller.task.done() and not stepper.has_work:
            break
    assert made.is_idle
    if not caller.task.cancelled() and caller.task.exception() is None:
        check_whole(caller, resumed, num_completions)
    elif not caller.task.cancelled():
        assert isinstance(caller.task.exception(), BatonError)
        assert what in ("a step fails", "the loop stops")


def check_whole(caller: Following, resumed: dict[int, bytes], num_completions: int) -> None:
    """Each completion ends once, with a stop or with all its tokens, and after its end nothing comes."""
    total = 0
    for index in range(num_completions):
        own = [event for event in caller.events if isinstance(event, Delta | Finished) and event.index == index]
        assert [isinstance(event, Finished) for event in own] == [False] * (len(own) - 1) + [True]
        drawn = b"".join(bytes(event.token_ids) for event in own if isinstance(event, Delta))
        text = resumed.get(index, b"") + drawn
        assert len(text) == MAX_TOKENS if b"Z" not in text else text.index(b"Z") == len(text) - 1
        total += len(text)
    usage = caller.events[-1]
    assert isinstance(usage, Usage)
    assert usage.num_completion_tokens == total


@settings(deadline=None)  # threads start when they start
@given(
    resumed=st.dictionaries(st.integers(0, 2), st.sampled_from([b"a", b"ab", b"aba", b"aZ", b"Z"])),
    num_completions=st.integers(1, 3),
    what=st.sampled_from(["nothing", "leave", "a step fails", "the loop stops"]),
    when=st.integers(0, 40),
    seed=st.integers(0, 1000),
)
def test_all_is_free_in_the_end(
    tokenizer: Tokenizer, resumed: dict[int, bytes], num_completions: int, what: What, when: int, seed: int
) -> None:
    resumed = {index: token_ids for index, token_ids in resumed.items() if index < num_completions}
    with KvPool.anonymous(LAYOUT, 9, "here") as pool:
        asyncio.run(run(Desk(pool, tokenizer), resumed, num_completions, what, when, seed))
