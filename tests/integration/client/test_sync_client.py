import gc
import math
import threading
from collections.abc import Callable

import grpc
import pytest

from baton.v1 import generation_pb2 as pb
from baton_client import (
    AlreadyExists,
    BatonClient,
    BatonClientError,
    Cancelled,
    ChatMessage,
    DataLoss,
    DeadlineExceeded,
    Delta,
    Embeddings,
    FailedPrecondition,
    Finished,
    FinishReason,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Sampling,
    Started,
    Timings,
    Unavailable,
    Unimplemented,
    Unknown,
    Usage,
)
from tests.integration.client.echo_server import Failure, ServerThread

USAGE = Usage(3, 2, 1, Timings(queue=0.001, prefill=0.02, kv_transfer=0.003, first_token=0.021, total=1.5))
UNAVAILABLE = Failure(grpc.StatusCode.UNAVAILABLE, reason="DRAINING")


def test_a_stream_gives_its_events_in_order(client: BatonClient) -> None:
    assert list(client.stream("a b c", max_tokens=2, request_id="r1")) == [
        Started("r1", prompt_tokens=3, cached_tokens=1),
        Delta(0, "4 ", (4,)),
        Delta(0, "5 ", (5,)),
        Finished(0, FinishReason.LENGTH),
        USAGE,
    ]


def test_stream_messages_gives_the_protobuf_messages(client: BatonClient) -> None:
    kinds = [message.WhichOneof("event") for message in client.stream_messages("a", max_tokens=1)]
    assert kinds == ["started", "delta", "finished", "usage"]


def test_generate_gives_the_whole_completion(client: BatonClient) -> None:
    result = client.generate([10, 20], max_tokens=3)
    assert result.text == "21 22 23 "
    assert result.completions[0].token_ids == (21, 22, 23)
    assert result.completions[0].finish_reason is FinishReason.STOP
    assert result.completions[0].matched_stop == "\n"
    assert result.usage.prompt_tokens == 2


def test_vectors_are_sent_as_they_are(client: BatonClient, server: ServerThread) -> None:
    vectors = Embeddings(b"0123456789ab", num_tokens=3, dtype="bfloat16")
    assert client.generate(vectors, max_tokens=2).text == "4 5 "
    assert [event.text for event in client.stream(vectors, max_tokens=1) if isinstance(event, Delta)] == ["4 "]
    for request in server.servicer.requests:
        assert isinstance(request, pb.GenerateRequest | pb.StreamGenerateRequest)
        assert request.embeddings == pb.Embeddings(data=b"0123456789ab", num_tokens=3, dtype="bfloat16")


def test_tokenize_detokenize_and_get_model(client: BatonClient) -> None:
    assert client.tokenize("a b") == [1, 2]
    assert client.tokenize([ChatMessage("system", "be kind"), ChatMessage("user", "hi")]) == [1, 2, 3]
    assert client.detokenize([7, 8]) == "7 8 "
    assert client.get_model().max_model_len == 128
    assert client.get_model().hidden_size == 64
    assert client.get_model().eos_token_ids == (0,)


def test_options_reach_the_server_and_absent_ones_stay_absent(client: BatonClient, server: ServerThread) -> None:
    client.generate("a", sampling=Sampling(temperature=0.5, seed=1), seed=7, stop="\n", token_ids=True, cache_salt="s")
    (request,) = server.servicer.requests
    assert request == pb.GenerateRequest(
        text="a",
        sampling=pb.Sampling(temperature=0.5, seed=7),
        stopping=pb.Stopping(stop=["\n"]),
        output=pb.Output(token_ids=True),
        cache_salt="s",
    )


@pytest.mark.parametrize(
    ("status", "exception"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgument),
        (grpc.StatusCode.FAILED_PRECONDITION, FailedPrecondition),
        (grpc.StatusCode.NOT_FOUND, NotFound),
        (grpc.StatusCode.ALREADY_EXISTS, AlreadyExists),
        (grpc.StatusCode.UNIMPLEMENTED, Unimplemented),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhausted),
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded),
        (grpc.StatusCode.CANCELLED, Cancelled),
        (grpc.StatusCode.DATA_LOSS, DataLoss),
        (grpc.StatusCode.INTERNAL, Internal),
        (grpc.StatusCode.UNKNOWN, Unknown),
        (grpc.StatusCode.PERMISSION_DENIED, BatonClientError),
    ],
)
def test_each_status_has_its_exception(
    client: BatonClient, server: ServerThread, status: grpc.StatusCode, exception: type[BatonClientError]
) -> None:
    server.servicer.failures = [Failure(status, "why"), Failure(status, "why")]
    for call in (lambda: client.generate("a"), lambda: list(client.stream("a"))):
        with pytest.raises(BatonClientError, match=r"^why$") as raised:
            call()
        assert type(raised.value) is exception
        assert raised.value.status is status


def test_reason_metadata_and_retry_delay_are_read(client: BatonClient, server: ServerThread) -> None:
    server.servicer.failures = [
        Failure(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "the queue is full",
            reason="QUEUE_FULL",
            metadata={"queue_len": "256"},
            retry_after_ms=1250,
        )
    ]
    with pytest.raises(ResourceExhausted) as raised:
        client.generate("a")
    assert raised.value.message == "the queue is full"
    assert raised.value.reason == "QUEUE_FULL"
    assert raised.value.metadata == {"queue_len": "256"}
    assert raised.value.retry_after == 1.25


def test_a_reason_of_another_domain_is_not_one_of_batons(client: BatonClient, server: ServerThread) -> None:
    server.servicer.failures = [
        Failure(grpc.StatusCode.INTERNAL, reason="PROXY_ODD", metadata={"a": "b"}, domain="proxy.example")
    ]
    with pytest.raises(Internal) as raised:
        client.generate("a")
    assert (raised.value.reason, raised.value.metadata, raised.value.retry_after) == ("", {}, None)


def _first_delta(client: BatonClient) -> None:
    """Reads up to the first delta, and leaves."""
    for event in client.stream("a"):
        if isinstance(event, Delta):
            return


def _leave_with_block(client: BatonClient) -> None:
    with client.stream("a") as stream:
        next(stream)


def _close(client: BatonClient) -> None:
    stream = client.stream("a")
    next(stream)
    stream.close()
    assert list(stream) == []


@pytest.mark.parametrize("leave", [_first_delta, _leave_with_block, _close])
def test_leaving_a_stream_cancels_it_on_the_server(
    client: BatonClient, server: ServerThread, leave: Callable[[BatonClient], None]
) -> None:
    server.servicer.silent_after = 1
    leave(client)
    gc.collect()
    assert server.servicer.cancelled.wait(10)


def test_close_from_another_thread_ends_a_silent_stream(client: BatonClient, server: ServerThread) -> None:
    server.servicer.silent_after = 1
    stream = client.stream("a")
    has_delta = threading.Event()

    def read() -> None:
        for event in stream:
            if isinstance(event, Delta):
                has_delta.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert has_delta.wait(10)
    stream.close()
    reader.join(10)
    assert not reader.is_alive()
    assert server.servicer.cancelled.wait(10)


def test_the_deadline_is_the_calls_or_the_clients(client: BatonClient, server: ServerThread) -> None:
    client.generate("a")
    client.generate("a", timeout=5)
    the_clients, the_calls = server.servicer.deadlines
    assert the_clients is not None
    assert the_calls is not None
    assert 6 < the_clients <= 31  # gRPC rounds up on the way
    assert the_calls <= 6


def test_a_stream_that_falls_silent_ends_at_its_deadline(client: BatonClient, server: ServerThread) -> None:
    server.servicer.silent_after = 1
    with pytest.raises(DeadlineExceeded):
        list(client.stream("a", timeout=0.5))
    assert server.servicer.cancelled.wait(10)


def _num_requests(*threads: ServerThread) -> int:
    return sum(len(thread.servicer.requests) for thread in threads)


def test_calls_go_round_robin(server: ServerThread, second_server: ServerThread) -> None:
    with BatonClient(f"{server.target},{second_server.target}") as client:
        for _ in range(3):
            client.generate("a")
        list(client.stream("b"))
    assert [len(thread.servicer.requests) for thread in (server, second_server)] == [2, 2]


def test_an_unavailable_target_is_passed_over(server: ServerThread, dead_target: str) -> None:
    with BatonClient([dead_target, server.target]) as client:
        for _ in range(4):
            assert client.generate("a", max_tokens=1).text == "2 "
            assert len(list(client.stream("a", max_tokens=1))) == 4


def test_unavailable_before_the_first_message_is_retried(server: ServerThread, second_server: ServerThread) -> None:
    server.servicer.failures = [UNAVAILABLE]
    with BatonClient([server.target, second_server.target]) as client:
        for _ in range(2):
            texts = [event.text for event in client.stream("a", max_tokens=2) if isinstance(event, Delta)]
            assert texts == ["2 ", "3 "]
    assert _num_requests(server, second_server) == 3


def test_unavailable_after_the_first_message_is_not(server: ServerThread, second_server: ServerThread) -> None:
    for thread in (server, second_server):
        thread.servicer.failure_after = (1, UNAVAILABLE)
    with BatonClient([server.target, second_server.target]) as client, pytest.raises(Unavailable):
        list(client.stream("a"))
    assert _num_requests(server, second_server) == 1


def test_each_target_is_tried_once(server: ServerThread, second_server: ServerThread) -> None:
    for thread in (server, second_server):
        thread.servicer.failures = [UNAVAILABLE] * 4
    with BatonClient([server.target, second_server.target]) as client, pytest.raises(Unavailable) as raised:
        client.generate("a")
    assert raised.value.reason == "DRAINING"
    assert [len(thread.servicer.requests) for thread in (server, second_server)] == [1, 1]


def test_other_failures_are_not_retried(server: ServerThread, second_server: ServerThread) -> None:
    for thread in (server, second_server):
        thread.servicer.failures = [Failure(grpc.StatusCode.RESOURCE_EXHAUSTED)]
    with BatonClient([server.target, second_server.target]) as client, pytest.raises(ResourceExhausted):
        client.generate("a")
    assert _num_requests(server, second_server) == 1


def test_a_stream_that_failed_has_ended(client: BatonClient, server: ServerThread) -> None:
    server.servicer.losses = [(2, UNAVAILABLE)]
    stream = client.stream("a")
    with pytest.raises(Unavailable):
        list(stream)
    assert list(stream) == []
    assert _num_requests(server) == 1


def test_completions_of_one_prompt(client: BatonClient) -> None:
    events = list(client.stream("a", n=2, max_tokens=1))
    assert events[1:-1] == [
        Delta(0, "2 ", (2,)),
        Finished(0, FinishReason.LENGTH),
        Delta(1, "102 ", (102,)),
        Finished(1, FinishReason.LENGTH),
    ]
    result = client.generate("a", n=2, max_tokens=1)
    assert [(completion.index, completion.text) for completion in result.completions] == [(0, "2 "), (1, "102 ")]


def test_a_closed_client_makes_no_calls(server: ServerThread) -> None:
    client = BatonClient(server.target)
    with client:
        unread = client.stream("a")
    for call in (lambda: next(unread), lambda: client.generate("a")):
        with pytest.raises(Cancelled, match="the client was closed"):
            call()


def test_readiness_follows_the_health_service(client: BatonClient, server: ServerThread) -> None:
    assert client.is_ready()
    server.set_ready(False)
    assert not client.is_ready()
    with pytest.raises(DeadlineExceeded, match=server.target):
        client.wait_until_ready(0.2)
    server.set_ready(True)
    client.wait_until_ready(30)


def test_one_ready_target_is_enough(server: ServerThread, dead_target: str) -> None:
    with BatonClient([dead_target, server.target]) as client:
        assert client.is_ready()
    with BatonClient(dead_target) as client:
        assert not client.is_ready()


@pytest.mark.parametrize("timeout", [math.inf, math.nan, 0, -1])
def test_a_time_that_no_call_can_have_is_refused(client: BatonClient, server: ServerThread, timeout: float) -> None:
    """An endless one overflowed and had passed at once."""
    calls: list[Callable[[], object]] = [
        lambda: BatonClient(server.target, timeout=timeout),
        lambda: client.generate("a", timeout=timeout),
        lambda: client.stream("a", timeout=timeout),
        lambda: client.get_model(timeout=timeout),
        lambda: client.is_ready(timeout=timeout),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="needs seconds > 0"):
            call()
    assert not server.servicer.requests


def test_waiting_may_be_endless(client: BatonClient) -> None:
    client.wait_until_ready(math.inf)


def test_a_target_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match="target 'foo' needs host:port"):
        BatonClient("localhost:1,foo")
