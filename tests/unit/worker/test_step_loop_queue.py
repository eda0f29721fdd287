"""How much can be asked of the step loop before it listens again."""

import queue
from collections.abc import Sequence as AbcSequence

import torch

from shared.engine.step import BeforeCompute, StepRow
from shared.worker.step_loop import Retired, StepEvent, StepLoop
from tests.unit.worker.counting_runner import CountingRunner
from tests.unit.worker.test_step_loop import PREFILL, WAIT_S, sequence


def test_all_that_run_may_leave_and_all_that_follow_may_come_and_leave() -> None:
    """Two sequences run; both are cancelled during the step that retires them, and two more come and go at once."""
    published: queue.Queue[list[StepEvent]] = queue.Queue()

    class LeavingRunner(CountingRunner):
        def run(self, walk: str, rows: AbcSequence[StepRow], before_compute: BeforeCompute) -> torch.Tensor:
            loop.cancel("a")
            loop.cancel("b")
            return super().run(walk, rows, before_compute)

    def publish(events: list[StepEvent]) -> None:
        published.put(events)
        if Retired("b") in [Retired(event.request_id) for event in events if isinstance(event, Retired)]:
            for name in ("c", "d"):
                loop.submit(sequence(name, [1]))
                loop.cancel(name)

    loop = StepLoop(LeavingRunner(), PREFILL, publish, num_threads=1, max_num_sequences=2)
    for name in ("a", "b"):
        loop.submit(sequence(name, [1]))
    loop.start()
    first, second = published.get(timeout=WAIT_S), published.get(timeout=WAIT_S)
    loop.stop()
    assert [event.request_id for event in first if isinstance(event, Retired)] == ["a", "b"]
    assert [event.request_id for event in second if isinstance(event, Retired)] == ["c", "d"]
