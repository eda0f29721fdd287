# ruff: noqa: N802 (the methods' names are gRPC's)
"""A small generation service whose answers can be computed by hand.

A text's token ids are 1, 2, … one for each word, and vectors' one for each of them; completion token k (from 1) is the
prompt's last id + k (and 100 more for each index), and its text is that number and a space. So "a b c" with max_tokens
2 gives the tokens 4, 5 and the text "4 5 ". What a request resumes is counted, and not sent again.

As a program it prints its target, and falls silent after so many deltas as its argument says.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from baton.v1 import generation_pb2 as pb
from baton.v1 import generation_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
SERVICE = "baton.v1.GenerationService"


@dataclass(frozen=True)
class Failure:
    """What a call fails with."""

    status: grpc.StatusCode
    message: str = "no"
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_after_ms: int | None = None
    domain: str = "baton.v1"

    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        status = status_pb2.Status(code=self.status.value[0], message=self.message)
        if self.retry_after_ms is not None:
            delay = Duration()
            delay.FromMilliseconds(self.retry_after_ms)
            self._add(status, error_details_pb2.RetryInfo(retry_delay=delay))
        if self.reason:
            info = error_details_pb2.ErrorInfo(reason=self.reason, domain=self.domain, metadata=self.metadata)
            self._add(status, info)
        return (("grpc-status-details-bin", status.SerializeToString()),)

    @staticmethod
    def _add(status: status_pb2.Status, detail: Message) -> None:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)


class EchoServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Counts on from the prompt; fails, or falls silent, as it is told."""

    def __init__(self) -> None:
        self.requests: list[Message] = []
        self.deadlines: list[float | None] = []
        self.failures: list[Failure] = []
        """One is taken by each call, before anything is sent."""
        self.silent_after: int | None = None
        """The stream says nothing more after so many deltas, until it is cancelled."""
        self.failure_after: tuple[int, Failure] | None = None
        """The stream fails after so many deltas."""
        self.losses: list[tuple[int, Failure]] = []
        """One is taken by each stream, which fails after so many messages, `started` the first of them."""
        self.cancelled = threading.Event()
        """A stream was left before its end."""

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        await self._enter(request, context)
        prompt, completions = _tokens(request)
        return pb.GenerateResponse(
            request_id=request.request_id or "made-by-server",
            completions=[
                pb.Completion(
                    index=index,
                    text="".join(f"{token} " for token in completion),
                    token_ids=completion,
                    finish_reason=pb.FINISH_REASON_STOP,
                    matched_stop=pb.MatchedStop(text="\n"),
                )
                for index, completion in enumerate(completions)
            ],
            usage=_usage(prompt, completions),
        )

    async def StreamGenerate(
        self,
        request: pb.StreamGenerateRequest,
        context: Context,
    ) -> AsyncIterator[pb.StreamGenerateResponse]:
        await self._enter(request, context)
        has_ended = False
        try:
            loss = self.losses.pop(0) if self.losses else None
            num_sent = 0
            async for response in self._stream(request, context):
                if loss is not None and num_sent == loss[0]:
                    await _abort(context, loss[1])
                yield response
                num_sent += 1
            has_ended = True
        except grpc.aio.AbortError:
            has_ended = True
            raise
        finally:
            if not has_ended:
                self.cancelled.set()

    async def _stream(
        self, request: pb.StreamGenerateRequest, context: Context
    ) -> AsyncIterator[pb.StreamGenerateResponse]:
        prompt, completions = _tokens(request)
        request_id = request.request_id or "made-by-server"
        num_resumed = {begun.index: len(begun.token_ids) for begun in request.resume}
        yield pb.StreamGenerateResponse(
            started=pb.Started(request_id=request_id, prompt_tokens=len(prompt), cached_tokens=1)
        )
        num_sent = 0
        for index, completion in enumerate(completions):
            for token in completion[num_resumed.get(index, 0) :]:
                await self._disturb(num_sent, context)
                yield pb.StreamGenerateResponse(delta=pb.Delta(index=index, text=f"{token} ", token_ids=[token]))
                num_sent += 1
            await self._disturb(num_sent, context)
            yield pb.StreamGenerateResponse(finished=pb.Finished(index=index, finish_reason=pb.FINISH_REASON_LENGTH))
        yield pb.StreamGenerateResponse(usage=_usage(prompt, completions))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        await self._enter(request, context)
        return pb.TokenizeResponse(token_ids=_prompt_tokens(request))

    async def Detokenize(
        self,
        request: pb.DetokenizeRequest,
        context: Context,
    ) -> pb.DetokenizeResponse:
        await self._enter(request, context)
        return pb.DetokenizeResponse(text="".join(f"{token} " for token in request.token_ids))

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        await self._enter(request, context)
        return pb.GetModelResponse(
            model="echo",
            fingerprint="f00d",
            max_model_len=128,
            vocab_size=1000,
            eos_token_ids=[0],
            has_chat_template=True,
            dtype="float32",
            hidden_size=64,
        )

    async def _enter(self, request: Message, context: Context) -> None:
        self.requests.append(request)
        self.deadlines.append(context.time_remaining())
        if self.failures:
            await _abort(context, self.failures.pop(0))

    async def _disturb(self, num_sent: int, context: Context) -> None:
        if num_sent == self.silent_after:
            await asyncio.Event().wait()
        if self.failure_after is not None and num_sent == self.failure_after[0]:
            await _abort(context, self.failure_after[1])


async def _abort(context: Context, failure: Failure) -> None:
    await context.abort(failure.status, failure.message, failure.trailers())


def _prompt_tokens(request: pb.GenerateRequest | pb.StreamGenerateRequest | pb.TokenizeRequest) -> list[int]:
    if not isinstance(request, pb.TokenizeRequest) and request.WhichOneof("prompt") == "token_ids":
        return list(request.token_ids.ids)
    if not isinstance(request, pb.TokenizeRequest) and request.WhichOneof("prompt") == "embeddings":
        return list(range(1, 1 + request.embeddings.num_tokens))
    texts = [message.content for message in request.chat.messages] or [request.text]
    return list(range(1, 1 + sum(len(text.split()) for text in texts)))


def _tokens(request: pb.GenerateRequest | pb.StreamGenerateRequest) -> tuple[list[int], list[list[int]]]:
    prompt = _prompt_tokens(request)
    last = prompt[-1] if prompt else 0
    lasts = [last + 100 * index for index in range(request.sampling.n or 1)]
    return prompt, [[last + k for k in range(1, 1 + (request.stopping.max_tokens or 3))] for last in lasts]


def _usage(prompt: Sequence[int], completions: Sequence[Sequence[int]]) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=len(prompt),
        completion_tokens=sum(map(len, completions)),
        cached_tokens=1,
        timings=pb.Timings(
            queue=Duration(nanos=1_000_000),
            prefill=Duration(nanos=20_000_000),
            kv_transfer=Duration(nanos=3_000_000),
            first_token=Duration(nanos=21_000_000),
            total=Duration(seconds=1, nanos=500_000_000),
        ),
    )


@dataclass
class RunningServer:
    """A server that listens."""

    servicer: EchoServicer
    health: health.aio.HealthServicer
    port: int

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def set_ready(self, is_ready: bool) -> None:
        statuses = health_pb2.HealthCheckResponse
        await self.health.set(SERVICE, statuses.SERVING if is_ready else statuses.NOT_SERVING)


@asynccontextmanager
async def running_server(port: int = 0) -> AsyncIterator[RunningServer]:
    """A ready server on `port` or a free one, in the running event loop."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    running = RunningServer(EchoServicer(), health.aio.HealthServicer(), server.add_insecure_port(f"127.0.0.1:{port}"))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(running.servicer, server)
    health_pb2_grpc.add_HealthServicer_to_server(running.health, server)
    await running.set_ready(True)
    await server.start()
    try:
        yield running
    finally:
        await server.stop(None)


class ServerThread:
    """A server in an event loop of its own, for callers that block."""

    def __init__(self) -> None:
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        async with running_server() as self.server:
            self._is_up.set()
            await self._stopping.wait()

    @property
    def target(self) -> str:
        return self.server.target

    @property
    def servicer(self) -> EchoServicer:
        return self.server.servicer

    def set_ready(self, is_ready: bool) -> None:
        asyncio.run_coroutine_threadsafe(self.server.set_ready(is_ready), self._loop).result(10)

    def __enter__(self) -> "ServerThread":
        self._thread.start()
        assert self._is_up.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(30)


async def _serve_until_killed(silent_after: int) -> None:
    async with running_server() as running:
        running.servicer.silent_after = silent_after
        sys.stdout.write(f"{running.target}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve_until_killed(int(sys.argv[1])))
