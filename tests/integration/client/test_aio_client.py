import asyncio
import gc
import math
from collections.abc import Awaitable, Callable

import grpc
import pytest

from baton_client import (
    AsyncBatonClient,
    Cancelled,
    DeadlineExceeded,
    Delta,
    Finished,
    FinishReason,
    InvalidArgument,
    Started,
    Timings,
    Unavailable,
    Usage,
)
from tests.integration.client.echo_server import EchoServicer, Failure, RunningServer, running_server

USAGE = Usage(3, 2, 1, Timings(queue=0.001, prefill=0.02, kv_transfer=0.003, first_token=0.021, total=1.5))
UNAVAILABLE = Failure(grpc.StatusCode.UNAVAILABLE, reason="DRAINING")


async def _was_cancelled(servicer: EchoServicer) -> bool:
    return await asyncio.to_thread(servicer.cancelled.wait, 10)


async def test_a_stream_gives_its_events_in_order(aio_server: RunningServer) -> None:
    async with AsyncBatonClient(aio_server.target) as client:
        assert [event async for event in client.stream("a b c", max_tokens=2, request_id="r1")] == [
            Started("r1", prompt_tokens=3, cached_tokens=1),
            Delta(0, "4 ", (4,)),
            Delta(0, "5 ", (5,)),
            Finished(0, FinishReason.LENGTH),
            USAGE,
        ]


async def test_the_unary_verbs(aio_server: RunningServer) -> None:
    async with AsyncBatonClient(aio_server.target) as client:
        assert (await client.generate([10, 20], max_tokens=3)).text == "21 22 23 "
        assert await client.tokenize("a b") == [1, 2]
        assert await client.detokenize([7, 8]) == "7 8 "
        assert (await client.get_model()).model == "echo"
        kinds = [message.WhichOneof("event") async for message in client.stream_messages("a", max_tokens=1)]
        assert kinds == ["started", "delta", "finished", "usage"]


async def test_failures_carry_reason_and_numbers(aio_server: RunningServer) -> None:
    aio_server.servicer.failures = [
        Failure(grpc.StatusCode.INVALID_ARGUMENT, reason="PROMPT_TOO_LONG", metadata={"max_model_len": "128"})
    ] * 2
    async with AsyncBatonClient(aio_server.target) as client:
        with pytest.raises(InvalidArgument) as raised:
            await client.generate("a")
        assert (raised.value.reason, raised.value.metadata) == ("PROMPT_TOO_LONG", {"max_model_len": "128"})
        with pytest.raises(InvalidArgument):
            await anext(client.stream("a"))


async def _break_off(client: AsyncBatonClient) -> None:
    async for event in client.stream("a"):
        if isinstance(event, Delta):
            break


async def _leave_with_block(client: AsyncBatonClient) -> None:
    async with client.stream("a") as stream:
        await anext(stream)


async def _close(client: AsyncBatonClient) -> None:
    stream = client.stream("a")
    await anext(stream)
    await stream.aclose()
    assert [event async for event in stream] == []


async def _cancel_the_reader(client: AsyncBatonClient) -> None:
    has_delta = asyncio.Event()

    async def read() -> None:
        async for event in client.stream("a"):
            if isinstance(event, Delta):
                has_delta.set()

    reader = asyncio.create_task(read())
    await has_delta.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader


async def _close_while_another_task_reads(client: AsyncBatonClient) -> None:
    has_delta = asyncio.Event()
    stream = client.stream("a")

    async def read() -> int:
        num_events = 0
        async for event in stream:
            num_events += 1
            if isinstance(event, Delta):
                has_delta.set()
        return num_events

    reader = asyncio.create_task(read())
    await has_delta.wait()
    await stream.aclose()
    assert await reader == 2


@pytest.mark.parametrize(
    "leave", [_break_off, _leave_with_block, _close, _cancel_the_reader, _close_while_another_task_reads]
)
async def test_leaving_a_stream_cancels_it_on_the_server(
    aio_server: RunningServer, leave: Callable[[AsyncBatonClient], Awaitable[None]]
) -> None:
    aio_server.servicer.silent_after = 1
    async with AsyncBatonClient(aio_server.target) as client:
        await leave(client)
        gc.collect()
        assert await _was_cancelled(aio_server.servicer)


async def test_a_stream_that_falls_silent_ends_at_its_deadline(aio_server: RunningServer) -> None:
    aio_server.servicer.silent_after = 1
    async with AsyncBatonClient(aio_server.target, timeout=0.5) as client:
        with pytest.raises(DeadlineExceeded):
            async for _ in client.stream("a"):
                pass
    assert await _was_cancelled(aio_server.servicer)


async def test_targets_take_turns_and_stand_in_for_each_other(aio_server: RunningServer) -> None:
    async with running_server() as second, AsyncBatonClient([aio_server.target, second.target]) as client:
        for _ in range(2):
            await client.generate("a")
        assert [len(server.servicer.requests) for server in (aio_server, second)] == [1, 1]
        aio_server.servicer.failures = [UNAVAILABLE]
        for _ in range(2):
            texts = [event.text async for event in client.stream("a", max_tokens=1) if isinstance(event, Delta)]
            assert texts == ["2 "]
        assert sum(len(server.servicer.requests) for server in (aio_server, second)) == 5


async def test_unavailable_after_the_first_message_is_not_retried(aio_server: RunningServer) -> None:
    async with running_server() as second, AsyncBatonClient([aio_server.target, second.target]) as client:
        for server in (aio_server, second):
            server.servicer.failure_after = (1, UNAVAILABLE)
        with pytest.raises(Unavailable):
            async for _ in client.stream("a"):
                pass
        assert len(aio_server.servicer.requests) + len(second.servicer.requests) == 1


async def test_a_stream_that_failed_has_ended(aio_server: RunningServer) -> None:
    aio_server.servicer.losses = [(2, UNAVAILABLE)]
    async with AsyncBatonClient(aio_server.target) as client:
        stream = client.stream("a")
        with pytest.raises(Unavailable):
            async for _ in stream:
                pass
        assert [event async for event in stream] == []
    assert len(aio_server.servicer.requests) == 1


async def test_a_call_that_the_server_cancels_is_no_cancelled_task(aio_server: RunningServer) -> None:
    aio_server.servicer.failures = [Failure(grpc.StatusCode.CANCELLED)] * 2
    async with AsyncBatonClient(aio_server.target) as client:
        with pytest.raises(Cancelled):
            await client.generate("a")
        with pytest.raises(Cancelled):
            await anext(client.stream("a"))


@pytest.mark.parametrize("resume", [False, True])
async def test_closing_the_client_ends_its_streams(aio_server: RunningServer, resume: bool) -> None:
    aio_server.servicer.silent_after = 1
    client = AsyncBatonClient(aio_server.target)
    has_delta = asyncio.Event()

    async def read() -> None:
        async for event in client.stream("a", resume=resume):
            if isinstance(event, Delta):
                has_delta.set()

    reader = asyncio.create_task(read())
    await has_delta.wait()
    await client.close()
    with pytest.raises(Cancelled, match="the client was closed"):
        await reader
    with pytest.raises(Cancelled, match="the client was closed"):
        await client.generate("a")


async def test_readiness_follows_the_health_service(aio_server: RunningServer, dead_target: str) -> None:
    async with AsyncBatonClient([dead_target, aio_server.target]) as client:
        assert await client.is_ready()
        await aio_server.set_ready(False)
        with pytest.raises(DeadlineExceeded, match=aio_server.target):
            await client.wait_until_ready(0.2)
        await aio_server.set_ready(True)
        await client.wait_until_ready(30)


def test_a_client_can_be_made_before_the_loop_runs() -> None:
    client = AsyncBatonClient("127.0.0.1:1")

    async def use() -> None:
        async with client:
            assert not await client.is_ready()

    asyncio.run(use())


@pytest.mark.parametrize("seconds", [math.inf, math.nan, 0, -1])
async def test_a_time_that_no_call_can_have_is_refused(aio_server: RunningServer, seconds: float) -> None:
    """An endless one overflowed and had passed at once."""
    with pytest.raises(InvalidArgument, match="needs seconds > 0"):
        AsyncBatonClient(aio_server.target, timeout=seconds)
    async with AsyncBatonClient(aio_server.target) as client:
        with pytest.raises(InvalidArgument, match="needs seconds > 0"):
            client.stream("a", timeout=seconds)
        calls: list[Awaitable[object]] = [
            client.generate("a", timeout=seconds),
            client.get_model(timeout=seconds),
            client.is_ready(timeout=seconds),
        ]
        for call in calls:
            with pytest.raises(InvalidArgument, match="needs seconds > 0"):
                await call
    assert not aio_server.servicer.requests


async def test_waiting_may_be_endless(aio_server: RunningServer) -> None:
    async with AsyncBatonClient(aio_server.target) as client:
        await client.wait_until_ready(math.inf)


def test_a_target_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match="target 'foo' needs host:port"):
        AsyncBatonClient(["localhost:1", "foo"])
