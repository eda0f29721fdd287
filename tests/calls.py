"""Calls of GenerationService with messages as they are, for tests of fields that no client can write wrong."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

import grpc
from google.rpc import error_details_pb2, status_pb2

from baton.v1 import generation_pb2 as pb
from baton.v1.generation_pb2_grpc import GenerationServiceStub
from shared.rpc.status import DETAILS_KEY

TIMEOUT_S = 300.0


@dataclass
class Streamed:
    """A stream's messages put together.

    Attributes:
        answer: what `Generate` would have answered.
        deltas: by completion.
    """

    answer: pb.GenerateResponse = field(default_factory=pb.GenerateResponse)
    deltas: dict[int, list[pb.Delta]] = field(default_factory=dict)

    def add(self, message: pb.StreamGenerateResponse) -> None:
        """Takes the next message, which must come in its place."""
        assert not self.answer.HasField("usage"), "nothing comes after the usage"
        match message.WhichOneof("event"):
            case "started":
                self.answer.request_id = message.started.request_id
                self.answer.prompt_logprobs.extend(message.started.prompt_logprobs)
            case "delta":
                self._add_delta(message.delta)
            case "finished":
                self._finish(message.finished)
            case "usage":
                self.answer.usage.CopyFrom(message.usage)

    def sorted(self) -> Self:
        """With the completions by index."""
        completions = sorted(self.answer.completions, key=lambda completion: completion.index)
        self.answer.ClearField("completions")
        self.answer.completions.extend(completions)
        return self

    def _completion(self, index: int) -> pb.Completion:
        for completion in self.answer.completions:
            if completion.index == index:
                return completion
        return self.answer.completions.add(index=index)

    def _add_delta(self, delta: pb.Delta) -> None:
        completion = self._completion(delta.index)
        assert not completion.finish_reason, "nothing comes after a completion's end"
        completion.text += delta.text
        completion.token_ids.extend(delta.token_ids)
        completion.logprobs.extend(delta.logprobs)
        self.deltas.setdefault(delta.index, []).append(delta)

    def _finish(self, finished: pb.Finished) -> None:
        completion = self._completion(finished.index)
        assert not completion.finish_reason, "a completion ends once"
        completion.finish_reason = finished.finish_reason
        if finished.HasField("matched_stop"):
            completion.matched_stop.CopyFrom(finished.matched_stop)


class Caller:
    """Sends messages to one decode service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = GenerationServiceStub(channel)

    async def generate(self, request: pb.GenerateRequest) -> pb.GenerateResponse:
        """The answer in one."""
        return await self._stub.Generate(request, timeout=TIMEOUT_S)

    async def stream(self, request: pb.GenerateRequest) -> pb.GenerateResponse:
        """The same answer, put together from a stream."""
        return (await self.streamed(request)).answer

    async def streamed(self, request: pb.GenerateRequest) -> Streamed:
        """A whole stream."""
        message = pb.StreamGenerateRequest.FromString(request.SerializeToString())
        streamed = Streamed()
        async for event in self._stub.StreamGenerate(message, timeout=TIMEOUT_S):
            streamed.add(event)
        return streamed.sorted()


@asynccontextmanager
async def calling(port: int) -> AsyncGenerator[Caller]:
    """A caller of the decode service at a port of this machine."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Caller(channel)


def bare(answer: pb.GenerateResponse, request: pb.GenerateRequest) -> pb.GenerateResponse:
    """An answer without what no two calls share: times, and an id that the server made."""
    copy = pb.GenerateResponse()
    copy.CopyFrom(answer)
    copy.usage.ClearField("timings")
    if not request.request_id:
        copy.ClearField("request_id")
    return copy


def error_details(
    error: grpc.aio.AioRpcError,
) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.BadRequest]:
    """What a refused call says beside its status; empty where it says nothing."""
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                detail.Unpack(info)
                detail.Unpack(bad_request)
    return info, bad_request
