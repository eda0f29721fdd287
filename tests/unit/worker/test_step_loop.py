import queue
import threading
from collections.abc import Iterator
from collections.abc import Sequence as AbcSequence
from contextlib import contextmanager

import torch

from shared.engine.step import BeforeCompute, StepRow
from shared.ladder import Ladder
from shared.planning import StepLimits
from shared.sampling.params import SamplingParams
from shared.text.stopping import Finish, FinishReason, StoppingParams
from shared.worker.sequence import Sequence
from shared.worker.step_loop import (
    ChunkLanded,
    LoopStopped,
    Retired,
    StepEvent,
    StepLoop,
    TokenSampled,
)
from shared.worker.walks import TokenWalk, WalkChoice
from tests.unit.worker.counting_runner import CountingRunner

LIMITS = StepLimits(budget=8, threshold=0, max_partial_prefills=0, max_num_rows=4, ladder=Ladder((1, 2, 4, 8)))
MIXED = TokenWalk("mixed", LIMITS)
DECODE = WalkChoice(MIXED, MIXED, decode="decode")
PREFILL = WalkChoice(TokenWalk("prefill_text", LIMITS))
WAIT_S = 10.0


def sequence(
    request_id: str, prompt: list[int], max_tokens: int = 3, num_computed: int = 0, **stopping: object
) -> Sequence:
    return Sequence(
        request_id=request_id,
        token_ids=list(prompt),
        prompt_len=len(prompt),
        num_computed_tokens=num_computed,
        block_table=(1, 2, 3, 4),
        sampling=SamplingParams(temperature=0),
        stopping=StoppingParams(max_tokens=max_tokens, **stopping),  # type: ignore[arg-type]  # options by name
        eos_token_ids=(99,),
        max_total_len=len(prompt) + max_tokens,
    )


class Running:
    """A loop and what it has published."""

    def __init__(self, runner: CountingRunner, walks: WalkChoice) -> None:
        self._published: queue.Queue[list[StepEvent]] = queue.Queue()
        self.loop = StepLoop(runner, walks, self._published.put, num_threads=1, max_num_sequences=4)

    def until_retired(self, *request_ids: str) -> list[list[StepEvent]]:
        """What each step published, until these are retired."""
        steps: list[list[StepEvent]] = []
        left = set(request_ids)
        while left:
            steps.append(self._published.get(timeout=WAIT_S))
            left -= {event.request_id for event in steps[-1] if isinstance(event, Retired)}
        return steps

    def next(self) -> list[StepEvent]:
        return self._published.get(timeout=WAIT_S)


@contextmanager
def running(runner: CountingRunner, walks: WalkChoice, *sequences: Sequence) -> Iterator[Running]:
    """A loop that finds these sequences submitted when it starts."""
    started = Running(runner, walks)
    for given in sequences:
        started.loop.submit(given)
    started.loop.start()
    try:
        yield started
    finally:
        started.loop.stop()


def test_a_prompt_runs_in_chunks_and_then_decodes() -> None:
    runner = CountingRunner()
    with running(runner, DECODE, sequence("a", list(range(10, 20)))) as started:
        steps = started.until_retired("a")
    assert runner.shapes == [
        ("mixed", [(0, 8)]),
        ("mixed", [(8, 2)]),
        ("decode", [(10, 1)]),
        ("decode", [(11, 1)]),
    ]
    assert steps == [
        [ChunkLanded("a", 8)],
        [ChunkLanded("a", 10), TokenSampled("a", 20, None)],
        [TokenSampled("a", 21, None)],
        [TokenSampled("a", 22, Finish(FinishReason.LENGTH)), Retired("a", num_computed_tokens=12)],
    ]


def test_decode_rows_and_prompt_chunks_share_a_mixed_step() -> None:
    runner = CountingRunner()
    fetched = sequence("d", [5, 6], num_computed=2)
    fetched.token_ids.append(7)
    with running(runner, DECODE, fetched, sequence("p", [30, 31, 32], max_tokens=1)) as started:
        steps = started.until_retired("d", "p")
    assert runner.shapes[0] == ("mixed", [(2, 1), (0, 3)])
    assert steps[0] == [
        TokenSampled("d", 8, None),
        ChunkLanded("p", 3),
        TokenSampled("p", 33, Finish(FinishReason.LENGTH)),
        Retired("p", num_computed_tokens=3),
    ]
    assert runner.shapes[1:] == [("decode", [(3, 1)])]


def test_prefill_retires_a_sequence_after_its_first_token() -> None:
    runner = CountingRunner()
    with running(runner, PREFILL, sequence("a", [1, 2], max_tokens=1)) as started:
        assert started.until_retired("a") == [
            [
                ChunkLanded("a", 2),
                TokenSampled("a", 3, Finish(FinishReason.LENGTH)),
                Retired("a", num_computed_tokens=2),
            ]
        ]
    assert runner.shapes == [("prefill_text", [(0, 2)])]


def test_end_of_sequence_ends_unless_ignored_or_banned() -> None:
    with running(CountingRunner(), DECODE, sequence("a", [98])) as started:
        last = started.until_retired("a")[-1]
    assert last[1] == TokenSampled("a", 99, Finish(FinishReason.STOP, matched_token_id=99))
    with running(CountingRunner(), DECODE, sequence("b", [98], ignore_eos=True)) as started:
        events = [event for step in started.until_retired("b") for event in step]
    tokens = [event.token_id for event in events if isinstance(event, TokenSampled)]
    assert tokens == [99, 0, 1]
    with running(CountingRunner(), DECODE, sequence("c", [98], min_tokens=1)) as started:
        first = started.until_retired("c")[0]
    assert first[1] == TokenSampled("c", 0, None), "with 99 banned all logits are equal, and the lowest id wins"


def test_a_cancelled_sequence_is_retired_without_another_step() -> None:
    runner = CountingRunner()
    started = Running(runner, DECODE)
    started.loop.submit(sequence("a", [1]))
    started.loop.cancel("a")
    started.loop.start()
    assert started.next() == [Retired("a")]
    started.loop.stop()
    assert runner.steps == []


def test_cancelling_what_has_finished_says_nothing_twice() -> None:
    with running(CountingRunner(), DECODE, sequence("a", [1], max_tokens=1)) as started:
        started.until_retired("a")
        started.loop.cancel("a")
        started.loop.submit(sequence("b", [1], max_tokens=1))
        assert started.until_retired("b") == [
            [
                ChunkLanded("b", 1),
                TokenSampled("b", 2, Finish(FinishReason.LENGTH)),
                Retired("b", num_computed_tokens=1),
            ]
        ]


def test_a_failed_step_fails_its_sequences_and_no_later_one() -> None:
    with running(CountingRunner(fail_on=66), DECODE, sequence("bad", [66])) as started:
        assert started.until_retired("bad") == [[Retired("bad", "no memory")]]
        started.loop.submit(sequence("good", [1], max_tokens=1))
        assert started.until_retired("good")[-1][-1] == Retired("good", num_computed_tokens=1)


def test_a_row_whose_logits_are_no_numbers_fails_alone() -> None:
    class NanRunner(CountingRunner):
        def run(self, walk: str, rows: AbcSequence[StepRow], before_compute: BeforeCompute) -> torch.Tensor:
            logits = super().run(walk, rows, before_compute)
            logits[[row.token_ids[-1] == 66 for row in rows]] = float("nan")
            return logits

    with running(NanRunner(), DECODE, sequence("bad", [66]), sequence("good", [2], max_tokens=1)) as started:
        assert started.until_retired("bad", "good") == [
            [
                Retired("bad", "the highest logit is nan"),
                ChunkLanded("good", 1),
                TokenSampled("good", 3, Finish(FinishReason.LENGTH)),
                Retired("good", num_computed_tokens=1),
            ]
        ]


def test_a_step_is_published_when_the_next_one_is_loaded_and_before_it_computes() -> None:
    published: list[list[StepEvent]] = []
    seen: list[tuple[int, int]] = []
    is_done = threading.Event()

    class WatchingRunner(CountingRunner):
        def run(self, walk: str, rows: AbcSequence[StepRow], before_compute: BeforeCompute) -> torch.Tensor:
            num_loaded = len(published)
            logits = super().run(walk, rows, before_compute)
            seen.append((num_loaded, len(published)))
            return logits

    def publish(events: list[StepEvent]) -> None:
        published.append(events)
        if isinstance(events[-1], Retired):
            is_done.set()

    loop = StepLoop(WatchingRunner(), DECODE, publish, num_threads=1, max_num_sequences=4)
    loop.submit(sequence("a", [1], max_tokens=3))
    loop.start()
    assert is_done.wait(WAIT_S), "the last step is published though none follows"
    loop.stop()
    assert seen == [(0, 0), (0, 1), (1, 2)]
    assert [type(step[0]) for step in published] == [ChunkLanded, TokenSampled, TokenSampled, LoopStopped]


def test_a_broken_loop_says_so() -> None:
    class BrokenRunner(CountingRunner):
        def run(self, walk: str, rows: AbcSequence[StepRow], before_compute: BeforeCompute) -> torch.Tensor:
            raise AssertionError(f"{walk} went wrong with {rows} before {before_compute}")

    with running(BrokenRunner(), DECODE, sequence("a", [1])) as started:
        (stopped,) = started.next()
    assert isinstance(stopped, LoopStopped)
    assert stopped.error is not None
    assert stopped.error.startswith("AssertionError: mixed went wrong")


def test_a_stopped_loop_says_so_without_error() -> None:
    started = Running(CountingRunner(), DECODE)
    started.loop.start()
    started.loop.stop()
    assert started.next() == [LoopStopped(None)]
