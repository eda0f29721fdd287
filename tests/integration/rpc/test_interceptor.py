"""What callers see, and what is counted, however a handler ends: against a real server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from baton.v1 import generation_pb2 as pb
from baton.v1 import generation_pb2_grpc, prefill_pb2, prefill_pb2_grpc
from shared.errors import InvalidRequestError, QueueFullError, Reason
from shared.rpc.interceptor import ErrorInterceptor
from shared.rpc.options import server_options
from shared.rpc.status import DETAILS_KEY, error_info

if TYPE_CHECKING:
    from baton.v1.generation_pb2_grpc import GenerationServiceAsyncStub
    from baton.v1.prefill_pb2_grpc import PrefillServiceAsyncStub

WAIT_S = 10.0
Context = grpc.aio.ServicerContext[Any, Any]
FULL = QueueFullError("3 wait", retry_after_s=1.5, metadata={"queue_len": 3})
TEXT_FIELD_NOT_UTF8 = b"\x12\x02\xff\xfe"
"""Field 2, a string of two bytes that no UTF-8 begins with."""


class Handlers:
    """One method of each kind: answers once, then fails with `error`, or hangs where it `hangs`."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.hangs = False
        self.is_hanging = asyncio.Event()
        self.was_left = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        unary = grpc.unary_unary_rpc_method_handler(
            self._tokenize, pb.TokenizeRequest.FromString, pb.TokenizeResponse.SerializeToString
        )
        server_stream = grpc.unary_stream_rpc_method_handler(
            self._generate, pb.StreamGenerateRequest.FromString, pb.StreamGenerateResponse.SerializeToString
        )
        bidi = grpc.stream_stream_rpc_method_handler(
            self._prefill, prefill_pb2.PrefillRequest.FromString, prefill_pb2.PrefillResponse.SerializeToString
        )
        services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {
            "baton.v1.GenerationService": {"Tokenize": unary, "StreamGenerate": server_stream},
            "baton.v1.PrefillService": {"Prefill": bidi},
        }
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()]
        )

    async def _tokenize(self, request: pb.TokenizeRequest, _context: Context) -> pb.TokenizeResponse:
        await self._end()
        return pb.TokenizeResponse(token_ids=[len(request.text)])

    async def _generate(
        self, _request: pb.StreamGenerateRequest, _context: Context
    ) -> AsyncIterator[pb.StreamGenerateResponse]:
        yield pb.StreamGenerateResponse()
        await self._end()

    async def _prefill(
        self, requests: AsyncIterator[prefill_pb2.PrefillRequest], _context: Context
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        async for _ in requests:
            yield prefill_pb2.PrefillResponse()
            await self._end()

    async def _end(self) -> None:
        try:
            if self.error is not None:
                raise self.error
            if self.hangs:
                self.is_hanging.set()
                await asyncio.Event().wait()
        finally:
            self.was_left.set()


class Statuses:
    """Collects what `on_status` was told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def __call__(self, method: str, status: str) -> None:
        self.told.put_nowait((method, status))

    async def only(self) -> tuple[str, str]:
        """The one status told."""
        first = await asyncio.wait_for(self.told.get(), WAIT_S)
        assert self.told.empty(), f"{first}, and then {self.told.get_nowait()}"
        return first


class Served:
    """A running server and how to call it."""

    def __init__(self, handlers: Handlers, statuses: Statuses, channel: grpc.aio.Channel) -> None:
        self.handlers = handlers
        self.statuses = statuses
        self.channel = channel
        self.generation: GenerationServiceAsyncStub = generation_pb2_grpc.GenerationServiceStub(channel)
        self.prefill: PrefillServiceAsyncStub = prefill_pb2_grpc.PrefillServiceStub(channel)

    async def unary(self) -> None:
        await self.generation.Tokenize(pb.TokenizeRequest(text="abc"))

    async def server_stream(self) -> None:
        await _read_all(self.generation.StreamGenerate(pb.StreamGenerateRequest()))

    async def bidi(self) -> None:
        await _read_all(self.prefill.Prefill(iter([prefill_pb2.PrefillRequest()])))


async def _read_all(call: Any) -> None:
    try:
        async for _ in call:
            pass
    finally:
        call.cancel()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as running:
        yield running


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    handlers, statuses = Handlers(), Statuses()
    server = grpc.aio.server(options=server_options(), interceptors=[ErrorInterceptor(statuses)])
    handlers.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Served(handlers, statuses, channel)
    await server.stop(None)


CALLS: dict[str, Callable[[Served], Awaitable[None]]] = {
    "Tokenize": Served.unary,
    "StreamGenerate": Served.server_stream,
    "Prefill": Served.bidi,
}
every_kind_of_call = pytest.mark.parametrize("method", CALLS)


@every_kind_of_call
async def test_a_call_that_succeeds(served: Served, method: str) -> None:
    await CALLS[method](served)
    assert await served.statuses.only() == (method, "OK")


@every_kind_of_call
async def test_an_error_becomes_its_status_with_details(served: Served, method: str) -> None:
    served.handlers.error = FULL
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await CALLS[method](served)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "3 wait")
    info = error_info(caught.value)
    assert info is not None
    assert (info.domain, info.reason, dict(info.metadata)) == ("baton.v1", "QUEUE_FULL", {"queue_len": "3"})
    retry = error_details_pb2.RetryInfo()
    assert status_of(caught.value).details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1500
    assert await served.statuses.only() == (method, "RESOURCE_EXHAUSTED")


def status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    (details,) = [value for key, value in error.trailing_metadata() if key == DETAILS_KEY]
    assert isinstance(details, bytes)
    return status_pb2.Status.FromString(details)


@every_kind_of_call
async def test_a_bug_is_unknown_and_not_the_callers_leaving(
    served: Served, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    served.handlers.error = ZeroDivisionError("a bug")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await CALLS[method](served)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert await served.statuses.only() == (method, "UNKNOWN")
    assert "ZeroDivisionError: a bug" in caplog.text, "and the log tells where"


@every_kind_of_call
async def test_a_caller_that_leaves_ends_the_handler(served: Served, method: str) -> None:
    served.handlers.hangs = True
    call = asyncio.ensure_future(CALLS[method](served))
    await asyncio.wait_for(served.handlers.is_hanging.wait(), WAIT_S)
    call.cancel()
    await asyncio.wait_for(served.handlers.was_left.wait(), WAIT_S)
    assert await served.statuses.only() == (method, "CANCELLED")
    await asyncio.wait({call})


def raw(data: bytes) -> bytes:
    return data


@pytest.mark.parametrize(
    ("method", "data"),
    [("Tokenize", TEXT_FIELD_NOT_UTF8), ("StreamGenerate", TEXT_FIELD_NOT_UTF8), ("Tokenize", b"\xff")],
    ids=["unary", "server stream", "no message at all"],
)
async def test_bytes_that_cannot_be_parsed(served: Served, method: str, data: bytes) -> None:
    path = f"/baton.v1.GenerationService/{method}"
    channel = served.channel
    call = (
        channel.unary_unary(path, request_serializer=raw)(data)
        if method == "Tokenize"
        else channel.unary_stream(path, request_serializer=raw)(data).read()
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert_malformed(caught.value)
    assert await served.statuses.only() == (method, "INVALID_ARGUMENT")


async def test_bytes_that_cannot_be_parsed_later_in_a_stream(served: Served) -> None:
    call: grpc.aio.StreamStreamCall[bytes, bytes] = served.channel.stream_stream(
        "/baton.v1.PrefillService/Prefill", request_serializer=raw
    )()
    start = prefill_pb2.PrefillStart(request_id="a")
    await call.write(prefill_pb2.PrefillRequest(start=start).SerializeToString())
    assert await call.read() == b"", "the first message was answered"
    await call.write(b"\x0a\x04\x0a\x02\xff\xfe")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert_malformed(caught.value)
    assert await served.statuses.only() == ("Prefill", "INVALID_ARGUMENT")


def assert_malformed(error: grpc.aio.AioRpcError) -> None:
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.details() or "").startswith("the message cannot be parsed (is every string valid UTF-8?)")
    info = error_info(error)
    assert info is not None
    assert info.reason == "MALFORMED_MESSAGE"


@every_kind_of_call
async def test_an_error_with_a_long_text_keeps_its_status(served: Served, method: str) -> None:
    text = "é" * 100_000
    served.handlers.error = InvalidRequestError(f"unknown: {text}", Reason.MODEL_UNKNOWN, {"model": text})
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await CALLS[method](served)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    info = error_info(caught.value)
    assert info is not None
    assert info.reason == "MODEL_UNKNOWN"
    assert info.metadata["model"].startswith("ééé")


async def test_a_method_that_is_not_there(served: Served) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.channel.unary_unary("/baton.v1.GenerationService/Guess", request_serializer=raw)(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert served.statuses.told.empty()
