"""A prefill replica that says what a test tells it to, over a real connection, and a transport that copies nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from baton.v1 import generation_pb2, prefill_pb2, prefill_pb2_grpc
from shared.kv.handle import KvHandle, LocalLocation, Location
from shared.kv.pool import KvPool
from shared.rpc.convert import handle_to_proto
from shared.rpc.interceptor import ErrorInterceptor
from tests.unit.kv.support import LAYOUT

WAIT_S = 10.0
EPOCH = "life-1"
SERVICE = "baton.v1.PrefillService"

Response = prefill_pb2.PrefillResponse
Script = Callable[["Dialogue"], AsyncIterator[Response]]


class Dialogue:
    """One Prefill stream as the replica sees it."""

    def __init__(self, start: prefill_pb2.PrefillStart, requests: AsyncIterator[prefill_pb2.PrefillRequest]) -> None:
        self.start = start
        self.acked: list[bytes] = []
        self.was_cancelled = False
        self.is_over = asyncio.Event()
        self._requests = requests

    async def acks(self) -> AsyncIterator[bytes]:
        """Acknowledged handle ids, until the client closes its half of the stream."""
        async for request in self._requests:
            self.acked.append(request.ack.handle_id)
            yield request.ack.handle_id

    async def until_closed(self) -> None:
        """Waits for the client to close its half of the stream."""
        async for _ in self.acks():
            pass


class ScriptedReplica:
    """Serves Prefill: the n-th stream follows the n-th script, the last script again and again."""

    def __init__(self, *scripts: Script) -> None:
        self.dialogues: list[Dialogue] = []
        self._scripts = scripts

    async def prefill(
        self,
        requests: AsyncIterator[prefill_pb2.PrefillRequest],
        _context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[Response]:
        first = await anext(aiter(requests))
        dialogue = Dialogue(first.start, requests)
        script = self._scripts[min(len(self.dialogues), len(self._scripts) - 1)]
        self.dialogues.append(dialogue)
        try:
            async for response in script(dialogue):
                yield response
        except (asyncio.CancelledError, GeneratorExit):  # the latter where it was sending
            dialogue.was_cancelled = True
            raise
        finally:
            dialogue.is_over.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[prefill_pb2_grpc.PrefillServiceAsyncStub]:
        """Serves, and yields a stub of it."""
        handler = grpc.stream_stream_rpc_method_handler(
            self.prefill, prefill_pb2.PrefillRequest.FromString, Response.SerializeToString
        )
        server = grpc.aio.server(interceptors=[ErrorInterceptor(lambda *_: None)])
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Prefill": handler})])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: prefill_pb2_grpc.PrefillServiceAsyncStub = prefill_pb2_grpc.PrefillServiceStub(channel)
            yield stub
        await server.stop(None)

    async def only_dialogue_over(self) -> Dialogue:
        """The one stream there was, once it is over."""
        (dialogue,) = self.dialogues
        await asyncio.wait_for(dialogue.is_over.wait(), WAIT_S)
        return dialogue


class RecordingTransport:
    """Copies nothing; keeps what was asked for.

    While `gate` is closed fetches wait, and a cancelled one ends when `may_end` is set: threads cannot be cancelled.
    `failure` is raised by the next fetch.
    """

    name = "recording"

    def __init__(self) -> None:
        self.fetched: list[tuple[int, int, tuple[int, ...]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.is_waiting = asyncio.Event()
        self.failure: BaseException | None = None

    def export(self, block_ids: Sequence[int]) -> Location:
        raise NotImplementedError(f"{block_ids} are not exported in these tests")

    async def fetch(self, handle: KvHandle, destination: KvPool, block_ids: Sequence[int]) -> None:
        assert destination.layout == handle.layout
        if not self.gate.is_set():
            self.is_waiting.set()
            try:
                await self.gate.wait()
            finally:
                while not self.may_end.is_set():
                    with suppress(asyncio.CancelledError):
                        await self.may_end.wait()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.fetched.append((handle.first_token, handle.end_token, tuple(block_ids)))

    def release(self, handle_id: bytes) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


def accepted(cached_tokens: int = 0) -> Response:
    return Response(accepted=prefill_pb2.PrefillAccepted(epoch=EPOCH, cached_tokens=cached_tokens))


def handle_message(
    first_token: int,
    end_token: int,
    token_id: int | None = None,
    *,
    is_final: bool | None = None,
    epoch: str = EPOCH,
    request_id: str = "a",
) -> Response:
    """A handle's message; with `token_id`, the final one."""
    num_blocks = -(-(end_token - first_token) // LAYOUT.block_size)
    handle = KvHandle(
        handle_id=end_token.to_bytes(16, "big"),
        epoch=epoch,
        request_id=request_id,
        first_token=first_token,
        end_token=end_token,
        is_final=token_id is not None if is_final is None else is_final,
        block_ids=tuple(range(1, num_blocks + 1)),
        block_generations=(1,) * num_blocks,
        layout=LAYOUT,
        location=LocalLocation(),
    )
    response = Response(handle=handle_to_proto(handle))
    if token_id is not None:
        response.first_tokens.add(token_id=token_id)
    return response


def last_message(
    token_ids: Sequence[int], first_token: int = 8, end_token: int = 10, *, request_id: str = "a"
) -> Response:
    """The last handle's message, with the first token of each completion."""
    response = handle_message(first_token, end_token, is_final=True, request_id=request_id)
    for index, token_id in enumerate(token_ids):
        response.first_tokens.add(token_id=token_id, index=index)
    return response


def saying(*responses: Response) -> Script:
    """Says all this at once, and waits for the client to close its half of the stream."""

    async def script(dialogue: Dialogue) -> AsyncIterator[Response]:
        for response in responses:
            yield response
        await dialogue.until_closed()

    return script


def holding(*responses: Response) -> Script:
    """Says all this at once, and ends by being cancelled only."""

    async def script(dialogue: Dialogue) -> AsyncIterator[Response]:
        for response in responses:
            yield response
        await dialogue.until_closed()
        await asyncio.Event().wait()

    return script


def hanging_up(*responses: Response, error: BaseException | None = None) -> Script:
    """Says all this, and then ends the stream or fails."""

    async def script(_dialogue: Dialogue) -> AsyncIterator[Response]:
        for response in responses:
            yield response
        if error is not None:
            raise error

    return script


GREEDY_MESSAGE = generation_pb2.Sampling(
    temperature=0,
    top_k=0,
    top_p=1,
    min_p=0,
    repetition_penalty=1,
    frequency_penalty=0,
    presence_penalty=0,
    seed=0,
    n=1,
)
