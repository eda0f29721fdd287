"""Streams that outlive their server: of both clients, through gRPC."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from baton.v1 import generation_pb2 as pb
from baton_client import (
    AsyncBatonClient,
    BatonClient,
    Cancelled,
    Completion,
    Delta,
    Event,
    Finished,
    FinishReason,
    InvalidArgument,
    Started,
    Unavailable,
    Usage,
)
from tests.integration.client.echo_server import Failure, RunningServer, ServerThread, running_server

GONE = Failure(grpc.StatusCode.UNAVAILABLE, "Stream removed (Socket closed)")
TOKENS = (4, 5, 6, 7)
NUM_MESSAGES = 7
"""`started`, four tokens, `finished`, `usage`."""


def _stream_sync(targets: str, **options: Any) -> list[Event]:
    with BatonClient(targets, timeout=30) as client:
        return list(client.stream("a b c", max_tokens=4, **options))


def _stream_aio(targets: str, **options: Any) -> list[Event]:
    async def read() -> list[Event]:
        async with AsyncBatonClient(targets, timeout=30) as client:
            return [event async for event in client.stream("a b c", max_tokens=4, **options)]

    return asyncio.run(read())


both = pytest.mark.parametrize("stream", [_stream_sync, _stream_aio])


def _requests(server: ServerThread) -> list[pb.StreamGenerateRequest]:
    requests = [request for request in server.servicer.requests if isinstance(request, pb.StreamGenerateRequest)]
    assert len(requests) == len(server.servicer.requests)
    return requests


def _check_whole(events: list[Event], token_ids: tuple[int, ...] = TOKENS) -> None:
    assert events[:-1] == [
        Started(events[0].request_id if isinstance(events[0], Started) else "", 3, 1),
        *(Delta(0, f"{token} ", (token,) if token_ids else ()) for token in TOKENS),
        Finished(0, FinishReason.LENGTH),
    ]
    assert isinstance(events[-1], Usage)
    assert events[-1].completion_tokens == 4


@both
@pytest.mark.parametrize("num_sent", range(NUM_MESSAGES))
def test_a_server_lost_after_any_message(server: ServerThread, stream: Any, num_sent: int) -> None:
    server.servicer.losses = [(num_sent, GONE)]
    _check_whole(stream(server.target, resume=True, token_ids=True, request_id="r"))
    first, second = _requests(server)
    num_tokens = min(max(num_sent - 1, 0), 4)
    assert [list(begun.token_ids) for begun in second.resume] == ([list(TOKENS[:num_tokens])] if num_tokens else [])
    assert (first.request_id, second.request_id) == ("r", "r~2")
    assert first.sampling.HasField("seed")
    assert first.sampling == second.sampling


@both
def test_servers_lost_one_after_another(server: ServerThread, second_server: ServerThread, stream: Any) -> None:
    for thread in (server, second_server):
        thread.servicer.losses = [(2, GONE)] * 2
    events = stream(f"{server.target},{second_server.target}", resume=True)
    _check_whole(events, token_ids=())
    assert len(_requests(server)) + len(_requests(second_server)) == 5
    assert abs(len(_requests(server)) - len(_requests(second_server))) == 1


@both
def test_completions_of_one_prompt(server: ServerThread, stream: Any) -> None:
    """Lost when the first had ended and the second had one token."""
    server.servicer.losses = [(7, GONE)]
    events = stream(server.target, resume=True, n=2)
    texts = ["".join(event.text for event in events if isinstance(event, Delta) and event.index == i) for i in (0, 1)]
    assert texts == ["4 5 6 7 ", "104 105 106 107 "]
    assert [event.index for event in events if isinstance(event, Finished)] == [0, 1]
    resumed = {begun.index: list(begun.token_ids) for begun in _requests(server)[1].resume}
    assert resumed == {0: [4, 5, 6, 7], 1: [104]}


@both
def test_a_full_queue_on_the_way_is_waited_for(server: ServerThread, stream: Any) -> None:
    server.servicer.losses = [
        (3, GONE),
        (0, Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry_after_ms=20)),
    ]
    _check_whole(stream(server.target, resume=True, token_ids=True))
    assert len(_requests(server)) == 3


@both
def test_what_would_fail_again_is_not_tried_again(server: ServerThread, stream: Any) -> None:
    server.servicer.losses = [(3, GONE), (1, Failure(grpc.StatusCode.INVALID_ARGUMENT, reason="RESUME_INVALID"))]
    with pytest.raises(InvalidArgument) as raised:
        stream(server.target, resume=True)
    assert raised.value.reason == "RESUME_INVALID"
    assert len(_requests(server)) == 2


@both
def test_without_it_a_stream_ends_with_its_server(server: ServerThread, stream: Any) -> None:
    server.servicer.losses = [(3, GONE)]
    with pytest.raises(Unavailable):
        stream(server.target)
    (request,) = _requests(server)
    assert not request.HasField("sampling")
    assert not request.HasField("output")


def test_patience_ends(dead_target: str) -> None:
    with BatonClient(dead_target, resume=True, resume_timeout=0.3) as client, pytest.raises(Unavailable):
        list(client.stream("a"))


async def test_patience_ends_asyncio(dead_target: str) -> None:
    async with AsyncBatonClient(dead_target, resume=True, resume_timeout=0.3) as client:
        with pytest.raises(Unavailable):
            await client.generate("a")


def test_generate_survives_and_the_client_may_say_so(server: ServerThread) -> None:
    with BatonClient(server.target, resume=True) as client:
        server.servicer.losses = [(3, GONE)]
        result = client.generate("a b c", max_tokens=4, request_id="r")
        assert result.request_id == "r"
        assert result.completions == (Completion(0, "4 5 6 7 ", (), (), FinishReason.LENGTH, None),)
        assert result.usage.completion_tokens == 4
        server.servicer.losses = [(3, GONE)]
        with pytest.raises(Unavailable):
            list(client.stream("a", resume=False))


async def test_generate_survives_asyncio(aio_server: RunningServer) -> None:
    aio_server.servicer.losses = [(3, GONE)]
    async with AsyncBatonClient(aio_server.target) as client:
        result = await client.generate("a b c", max_tokens=4, token_ids=True, resume=True)
        assert (result.text, result.completions[0].token_ids) == ("4 5 6 7 ", TOKENS)


def test_messages_are_resumed_too(client: BatonClient, server: ServerThread) -> None:
    server.servicer.losses = [(3, GONE)]
    messages = list(client.stream_messages("a b c", max_tokens=4, resume=True))
    assert [message.delta.text for message in messages if message.HasField("delta")] == ["4 ", "5 ", "6 ", "7 "]
    assert len(messages) == NUM_MESSAGES


async def test_a_server_that_comes_back() -> None:
    """The only target is stopped with the stream running, and starts again."""

    async def read(events: AsyncIterator[Event]) -> str:
        return "".join([event.text async for event in events if isinstance(event, Delta)])

    async with running_server() as first:
        first.servicer.silent_after = 2
        client = AsyncBatonClient(first.target, timeout=30)
        stream = client.stream("a b c", max_tokens=4, resume=True)
        begun = [await anext(stream) for _ in range(3)]
        rest = asyncio.create_task(read(stream))
        port = first.port
    async with running_server(port):
        assert await rest == "6 7 "
    assert [event.text for event in begun if isinstance(event, Delta)] == ["4 ", "5 "]
    await client.close()


@contextmanager
def _process(silent_after: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.integration.client.echo_server", str(silent_after)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_process_that_is_killed(server: ServerThread) -> None:
    with _process(2) as (process, target), BatonClient([target, server.target], timeout=30) as client:
        events: list[Event] = []
        while not events:  # the turn of the process comes first or second
            stream = client.stream("a b c", max_tokens=4, resume=True, token_ids=True)
            events = [next(stream) for _ in range(3)]
            if server.servicer.requests:
                server.servicer.requests.clear()
                events.clear()
        process.kill()
        _check_whole([*events, *stream])
    assert len(_requests(server)) == 1


def test_closing_while_it_waits_for_another_try_ends_it(dead_target: str) -> None:
    with BatonClient(dead_target, timeout=30) as client:
        stream = client.stream("a", resume=True)
        reader = threading.Thread(target=lambda: list(stream))
        reader.start()
        stream.close()
        reader.join(10)
        assert not reader.is_alive()


def test_closing_the_client_ends_its_streams(server: ServerThread) -> None:
    server.servicer.silent_after = 1
    client = BatonClient(server.target, resume=True)
    has_delta = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for event in client.stream("a"):
                if isinstance(event, Delta):
                    has_delta.set()
        except Cancelled as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert has_delta.wait(10)
    client.close()
    reader.join(10)
    assert [str(failure) for failure in failures] == ["the client was closed"]
