"""Streams that one server begins and another ends, as messages alone: what goes out, and what the caller sees."""

from collections.abc import Sequence

import pytest

from baton.v1 import generation_pb2 as pb
from baton_client.resumption import MAX_REQUEST_ID_LEN, PlainExchange, ResumableExchange

STARTED = pb.StreamGenerateResponse(started=pb.Started(request_id="by-server", prompt_tokens=2))
USAGE = pb.StreamGenerateResponse(usage=pb.Usage(completion_tokens=3))


def delta(text: str, *token_ids: int, index: int = 0, logprob: float | None = None) -> pb.StreamGenerateResponse:
    logprobs = [] if logprob is None else [pb.TokenLogprobs(token=pb.TokenLogprob(logprob=logprob))]
    return pb.StreamGenerateResponse(delta=pb.Delta(index=index, text=text, token_ids=token_ids, logprobs=logprobs))


def finished(index: int = 0) -> pb.StreamGenerateResponse:
    return pb.StreamGenerateResponse(finished=pb.Finished(index=index, finish_reason=pb.FINISH_REASON_STOP))


def exchange(**fields: object) -> ResumableExchange:
    return ResumableExchange(pb.StreamGenerateRequest(text="p", sampling=pb.Sampling(seed=7), **fields))  # type: ignore[arg-type]


def seen(stream: ResumableExchange, *messages: pb.StreamGenerateResponse) -> list[pb.StreamGenerateResponse]:
    """What the caller sees of copies of these messages, which exchanges may change."""
    copies = [pb.StreamGenerateResponse.FromString(message.SerializeToString()) for message in messages]
    return [passed for copy in copies if (passed := stream.pass_on(copy)) is not None]


def resumed(request: pb.StreamGenerateRequest) -> dict[int, Sequence[int]]:
    return {begun.index: list(begun.token_ids) for begun in request.resume}


def test_the_first_request_asks_for_token_ids_which_the_caller_sees_if_wanted() -> None:
    quiet = exchange()
    assert quiet.next_request() == pb.StreamGenerateRequest(
        text="p", sampling=pb.Sampling(seed=7), output=pb.Output(token_ids=True)
    )
    assert seen(quiet, delta("a", 5)) == [delta("a")]
    assert seen(exchange(output=pb.Output(token_ids=True)), delta("a", 5)) == [delta("a", 5)]


def test_a_seed_is_chosen_once_and_the_callers_message_stays_as_it_is() -> None:
    request = pb.StreamGenerateRequest(text="p")
    streams = [ResumableExchange(request) for _ in range(2)]
    first, second, other = streams[0].next_request(), streams[0].next_request(), streams[1].next_request()
    assert first.sampling.seed == second.sampling.seed != other.sampling.seed
    assert request == pb.StreamGenerateRequest(text="p")


def test_lost_before_it_started() -> None:
    stream = exchange(output=pb.Output(prompt_logprobs=2))
    first, second = stream.next_request(), stream.next_request()
    assert second == first
    assert second.output.prompt_logprobs == 2
    assert seen(stream, STARTED, delta("a", 5)) == [STARTED, delta("a")]


def test_lost_after_it_started() -> None:
    stream = exchange(output=pb.Output(prompt_logprobs=2, logprobs=1))
    stream.next_request()
    assert seen(stream, STARTED) == [STARTED]
    second = stream.next_request()
    assert (resumed(second), second.request_id) == ({}, "by-server~2")
    assert second.output == pb.Output(logprobs=1, token_ids=True)
    again = pb.StreamGenerateResponse(started=pb.Started(request_id="by-server~2"))
    assert seen(stream, again, delta("a", 5)) == [delta("a")]


def test_lost_while_a_possible_stop_is_held_back() -> None:
    """The tokens whose text was held back are resumed too; the next server's text begins with it."""
    stream = exchange(stopping=pb.Stopping(stop=["xyz"]))
    stream.next_request()
    assert seen(stream, STARTED, delta("a", 5), delta("", 6), delta("", 7)) == [
        STARTED,
        delta("a"),
        delta(""),
        delta(""),
    ]
    second = stream.next_request()
    assert resumed(second) == {0: [5, 6, 7]}
    assert second.stopping.stop == ["xyz"]
    assert seen(stream, STARTED, delta("xyw", 8), finished(), USAGE) == [delta("xyw"), finished(), USAGE]


def test_lost_between_the_last_token_and_its_end_and_lost_again_before_usage() -> None:
    stream = exchange()
    stream.next_request()
    seen(stream, STARTED, delta("a", 5), delta("b", 6))
    assert resumed(stream.next_request()) == {0: [5, 6]}
    assert seen(stream, STARTED, finished()) == [finished()]
    assert not stream.is_complete
    assert resumed(stream.next_request()) == {0: [5, 6]}
    assert seen(stream, STARTED, finished(), USAGE) == [USAGE]
    assert stream.is_complete


def test_of_three_completions_one_has_ended_and_one_not_begun() -> None:
    stream = exchange()
    stream.next_request()
    seen(stream, STARTED, delta("a", 5, index=2), delta("b", 6, index=0), delta("c", 8, index=2), finished(2))
    assert resumed(stream.next_request()) == {0: [6], 2: [5, 8]}
    assert seen(stream, STARTED, finished(2), delta("d", 9, index=1), delta("e", 4), finished(), finished(1)) == [
        delta("d", index=1),
        delta("e"),
        finished(),
        finished(1),
    ]
    assert resumed(stream.next_request()) == {0: [6, 4], 1: [9], 2: [5, 8]}


def test_log_probabilities_go_through_and_are_asked_for_again() -> None:
    stream = exchange(output=pb.Output(logprobs=3, token_ids=True))
    stream.next_request()
    assert seen(stream, STARTED, delta("a", 5, logprob=-0.5)) == [STARTED, delta("a", 5, logprob=-0.5)]
    assert stream.next_request().output == pb.Output(logprobs=3, token_ids=True)
    assert seen(stream, STARTED, delta("b", 6, logprob=-1)) == [delta("b", 6, logprob=-1)]


def test_what_the_caller_resumed_comes_first() -> None:
    stream = exchange(resume=[pb.Resumption(index=0, token_ids=[1, 2])])
    assert resumed(stream.next_request()) == {0: [1, 2]}
    seen(stream, STARTED, delta("a", 3))
    assert resumed(stream.next_request()) == {0: [1, 2, 3]}


@pytest.mark.parametrize("given", ["r", "r" * MAX_REQUEST_ID_LEN])
def test_each_attempt_has_an_id_of_its_own_and_the_caller_sees_the_first(given: str) -> None:
    stream = exchange(request_id=given)
    ids = [stream.next_request().request_id for _ in range(12)]
    assert ids[0] == given
    assert len(set(ids)) == 12
    assert max(map(len, ids)) <= MAX_REQUEST_ID_LEN
    late = pb.StreamGenerateResponse(started=pb.Started(request_id=ids[-1]))
    assert seen(stream, late) == [pb.StreamGenerateResponse(started=pb.Started(request_id=given))]


def test_an_event_of_a_newer_server_goes_through() -> None:
    assert seen(exchange(), pb.StreamGenerateResponse()) == [pb.StreamGenerateResponse()]


def test_a_plain_exchange_changes_nothing() -> None:
    request = pb.StreamGenerateRequest(text="p")
    plain = PlainExchange(request)
    assert plain.next_request() is request
    assert request == pb.StreamGenerateRequest(text="p")
    assert plain.pass_on(USAGE) is USAGE
    assert not plain.is_complete
