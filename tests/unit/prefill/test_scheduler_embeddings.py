from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from prefill_service.job import Accepted, JobMessage, PrefillTask
from tests.unit.prefill.bench import Bench, taken, task

MakeBench = Callable[..., Bench]


def vectors(*values: float) -> npt.NDArray[np.float32]:
    """A vector of two equal values for each one given."""
    return np.repeat(np.array(values, np.float32)[:, None], 2, axis=1)


def embeddings_task(request_id: str, rows: npt.NDArray[np.float32]) -> PrefillTask:
    return replace(task(request_id, len(rows)), token_ids=(0,) * len(rows), input_embeddings=rows)


def first_message(made: Bench, wanted: PrefillTask) -> JobMessage:
    return taken(made.scheduler.submit(wanted))[0]


def test_vectors_go_to_the_step_loop(bench: MakeBench) -> None:
    made, rows = bench(), vectors(1, 2, 3, 4, 5)
    made.scheduler.submit(embeddings_task("a", rows))
    (sequence,) = made.loop.submitted
    assert sequence.input_embeddings is rows
    assert (sequence.token_ids, sequence.prompt_len) == ([0] * 5, 5)


def test_only_equal_vectors_are_found_again(bench: MakeBench) -> None:
    made = bench()
    made.scheduler.submit(embeddings_task("a", vectors(1, 2, 3, 4, 5)))
    made.finish("a", 5)
    assert first_message(made, embeddings_task("b", vectors(1, 2, 3, 4, 9))) == Accepted(4)
    assert first_message(made, embeddings_task("c", vectors(1, 2, 3, 9, 5))) == Accepted(0)
    assert first_message(made, replace(task("d", 5), token_ids=(0,) * 5)) == Accepted(0)


def test_hashes_that_the_caller_made_are_used(bench: MakeBench) -> None:
    made, rows = bench(), vectors(1, 2, 3, 4, 5)
    wanted = embeddings_task("a", rows)
    job = made.scheduler.submit(wanted, made.ledger.prompt_hashes(wanted.token_ids, "", rows))
    made.finish("a", 5)
    assert first_message(made, embeddings_task("b", rows)) == Accepted(4)
    made.scheduler.close(job)
    assert made.counts.in_use == 2
