"""What a request may ask of prefill beside KV: several first tokens, what was generated, log-probabilities."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from prefill_service.job import Accepted, FirstToken, HandleReady, PrefillTask, PromptScored
from shared.kv.allocator import BlockCounts
from shared.sampling.logprobs import TokenLogprob, TokenLogprobs
from shared.sampling.params import SamplingParams
from shared.worker.step_loop import ChunkLanded, Retired, TokenSampled
from tests.unit.prefill.bench import Bench, handles, taken, task

MakeBench = Callable[..., Bench]

SCORE = TokenLogprobs(TokenLogprob(3, -0.5, 1))


def asking(request_id: str = "a", prompt_len: int = 10, **options: object) -> PrefillTask:
    return replace(task(request_id, prompt_len), **options)  # type: ignore[arg-type]  # fields by name


def test_the_last_handle_has_the_first_token_of_each_completion(bench: MakeBench) -> None:
    made = bench()
    job = made.scheduler.submit(asking(sampling=SamplingParams(n=3), logprobs=0))
    (sequence,) = made.loop.submitted
    assert (sequence.indices, sequence.logprobs) == ((0, 1, 2), 0)
    made.land("a", 8)
    made.scheduler.on_events(
        [ChunkLanded("a", 10), *(TokenSampled("a", 40 + index, None, index, SCORE) for index in range(3)), Retired("a")]
    )
    first, last = handles(job)
    assert first.first_tokens == ()
    assert last.first_tokens == tuple(FirstToken(40 + index, index, SCORE) for index in range(3))
    assert last.handle.is_final


def test_what_was_generated_is_computed_and_counts_as_generated(bench: MakeBench) -> None:
    made = bench()
    job = made.scheduler.submit(asking(num_generated_tokens=4))
    (sequence,) = made.loop.submitted
    assert (sequence.prompt_len, sequence.num_generated, sequence.num_remaining) == (6, 4, 10)
    assert sequence.sample_rows()[0].position == 4
    made.finish("a", 10)
    (ready,) = handles(job)
    assert (ready.handle.first_token, ready.handle.end_token) == (0, 10)


def test_a_last_token_that_was_a_step_of_its_own_is_counted_and_shared_too(bench: MakeBench) -> None:
    made = bench()
    made.scheduler.submit(asking(prompt_len=8, num_generated_tokens=4))
    # As the stepper tells it: what is left after this chunk is the newest generated token.
    made.scheduler.on_events([ChunkLanded("a", 7)])
    made.scheduler.on_events([TokenSampled("a", 42, None), Retired("a")])
    assert made.scheduler.load().num_waiting_tokens == 0
    longer = made.scheduler.submit(replace(task("a", 10), request_id="b"))
    assert taken(longer)[0] == Accepted(8)


def test_vectors_may_be_followed_by_what_was_generated(bench: MakeBench) -> None:
    made = bench()
    vectors = np.ones((6, 2), np.float32)
    made.scheduler.submit(asking(num_generated_tokens=4, input_embeddings=vectors))
    (sequence,) = made.loop.submitted
    row = sequence.step_row(8)
    assert row.input_embeddings is not None
    assert len(row.input_embeddings) == 6
    assert len(row.token_ids) == 8


def test_scores_of_a_chunk_go_out_before_its_handle(bench: MakeBench) -> None:
    made = bench()
    job = made.scheduler.submit(asking(prompt_logprobs=1))
    (sequence,) = made.loop.submitted
    assert sequence.prompt_logprobs == 1
    made.scheduler.on_events([ChunkLanded("a", 5, (SCORE,) * 5)])
    made.scheduler.on_events([ChunkLanded("a", 10, (SCORE,) * 4), TokenSampled("a", 42, None), Retired("a")])
    accepted, scored, ready, last_scored, last_ready = taken(job)
    assert accepted == Accepted(0)
    assert (scored, last_scored) == (PromptScored((SCORE,) * 5), PromptScored((SCORE,) * 4))
    assert isinstance(ready, HandleReady)
    assert isinstance(last_ready, HandleReady)
    assert (ready.handle.is_final, last_ready.handle.is_final) == (False, True)


def test_a_prompt_that_is_scored_is_computed_whole_and_shared_afterwards(bench: MakeBench) -> None:
    made = bench()
    made.submit("a", 10)
    made.finish("a", 10)
    scored = made.scheduler.submit(replace(task("a", 10), request_id="b", prompt_logprobs=0))
    assert taken(scored)[0] == Accepted(0)
    assert made.loop.submitted[-1].num_computed_tokens == 0
    made.finish("b", 10)
    again = made.scheduler.submit(replace(task("a", 10), request_id="c"))
    assert taken(again)[0] == Accepted(8)


def test_chunks_of_one_token_fit_in_the_outbox(bench: MakeBench) -> None:
    made = bench()
    job = made.scheduler.submit(asking(prompt_logprobs=0))
    for end in range(1, 10):
        made.scheduler.on_events([ChunkLanded("a", end, (SCORE,))])
    made.finish("a", 10)
    assert len([message for message in taken(job) if isinstance(message, PromptScored)]) == 9


def test_scores_of_a_stream_that_has_ended_go_nowhere(bench: MakeBench) -> None:
    made = bench()
    job = made.scheduler.submit(asking(prompt_logprobs=0))
    taken(job)
    made.scheduler.close(job)
    made.scheduler.on_events([ChunkLanded("a", 5, (SCORE,)), Retired("a")])
    assert taken(job) == []
    assert made.counts == BlockCounts(free=7, cached=1, in_use=0)
