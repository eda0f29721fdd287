"""The client for asyncio: the same verbs as the one for threads, awaited."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, Unpack

import grpc

from baton.v1 import generation_pb2 as pb
from baton.v1.generation_pb2_grpc import GenerationServiceStub
from baton_client import convert, health, values
from baton_client.attempts import DEFAULT_RESUME_TIMEOUT_S, Attempts, PatientAttempts
from baton_client.errors import BatonClientError, DeadlineExceeded, closed, error_from_rpc
from baton_client.resumption import Exchange, new_exchange
from baton_client.targets import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    channel_options,
    check_timeout,
    parse_targets,
    turns,
)

if TYPE_CHECKING:
    from baton.v1.generation_pb2_grpc import GenerationServiceAsyncStub

_Item = TypeVar("_Item")
_Response = TypeVar("_Response")


class AsyncCompletionStream(Generic[_Item]):
    """Events of one completion as they arrive.

    The call starts when the first event is asked for. Leaving early ends it on the server too: by `aclose`, by the end
    of an `async with` block, by cancelling the task that iterates, or by dropping the stream.

    Raises (from iteration):
        BatonClientError: the call failed; `DeadlineExceeded`, `Unavailable` and so on by its status.
    """

    def __init__(
        self,
        stub_of: "Callable[[str], GenerationServiceAsyncStub]",
        exchange: Exchange,
        attempts: Attempts,
        decode: Callable[[pb.StreamGenerateResponse], _Item | None],
    ) -> None:
        self._stub_of = stub_of
        self._exchange = exchange
        self._attempts = attempts
        self._decode = decode
        self._call: grpc.aio.UnaryStreamCall[pb.StreamGenerateRequest, pb.StreamGenerateResponse] | None = None
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Item:
        while (message := await self._next_message()) is not None:
            if (item := self._decode(message)) is not None:
                return item
        await self.aclose()
        raise StopAsyncIteration

    async def _next_message(self) -> pb.StreamGenerateResponse | None:
        """The next message that the caller sees, from another target if one is lost and may be; None at the end."""
        while not self._is_closed:
            try:
                message = await self._running_call().read()
            except grpc.RpcError as error:
                await self._recover(error_from_rpc(error), error)
                continue
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                await self._recover(closed(), error)
                continue
            if not isinstance(message, pb.StreamGenerateResponse):
                return None
            if (seen := self._exchange.pass_on(message)) is not None:
                self._attempts.note_arrival()
                return seen
        return None

    def _running_call(self) -> "grpc.aio.UnaryStreamCall[pb.StreamGenerateRequest, pb.StreamGenerateResponse]":
        if self._call is None:
            stub = self._stub_of(self._attempts.target)
            self._call = stub.StreamGenerate(self._exchange.next_request(), timeout=self._attempts.remaining)
        return self._call

    async def _recover(self, failure: BatonClientError, cause: BaseException) -> None:
        """Prepares another attempt, or raises; ends a stream that is closed or has said all."""
        self._call = None
        self._is_closed = self._is_closed or self._exchange.is_complete
        if self._is_closed:
            return
        try:
            delay = self._attempts.next_delay(failure)
        except BatonClientError:
            self._is_closed = True
            raise failure from cause
        await asyncio.sleep(delay)

    async def aclose(self) -> None:
        """Cancels the call if it still runs; iteration ends."""
        self._cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._cancel()

    def _cancel(self) -> None:
        self._is_closed = True
        if self._call is not None:
            self._call.cancel()


class AsyncBatonClient:
    """Calls the decode services at `targets`.

        async with AsyncBatonClient("localhost:50051") as client:
            async for event in client.stream("The capital of France is", temperature=0, max_tokens=16):
                if isinstance(event, Delta):
                    print(event.text, end="", flush=True)

    Calls go round-robin over the targets, from a random one on, each over a channel that is kept open. A call that
    finds its target unavailable before anything was streamed goes on to the next target, each once at most. A client
    belongs to the event loop that makes its first call.

    With `resume=True` a stream goes on after the loss of its server: another one, or the same when it is back, gets the
    tokens so far, and the caller sees one unbroken stream, with the tokens that the lost server would have given. The
    request gets a seed if it has none. It fails when `resume_timeout` seconds of failures have brought nothing new, or
    at its deadline. `Usage` counts all tokens; its `cached_tokens` and `timings` are those of the last attempt.

    Args:
        targets: "host:port", several of them joined by commas, or a sequence.
        timeout: seconds that a call may take, unless the call says otherwise. Every call has a deadline.
        credentials: for TLS; None connects in plain text.
        resume: whether `generate`, `stream` and `stream_messages` do so, unless the call says otherwise.
        resume_timeout: seconds.

    Raises:
        ValueError: `targets` has none, or one that is none.
        InvalidArgument: `timeout` or `resume_timeout` is none that a call can have.

    Raises (from every call):
        BatonClientError: the call failed; its subclasses tell the statuses apart.
        InvalidArgument: also before anything is sent, where a value does not fit its field.
    """

    def __init__(
        self,
        targets: str | Sequence[str] = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        credentials: grpc.ChannelCredentials | None = None,
        resume: bool = False,
        resume_timeout: float = DEFAULT_RESUME_TIMEOUT_S,
    ) -> None:
        self._targets = parse_targets(targets)
        self._timeout = check_timeout(timeout)
        self._resume = resume
        self._resume_timeout = check_timeout(resume_timeout)
        self._is_closed = False
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._turns = turns(len(self._targets))

    async def generate(
        self,
        prompt: values.Prompt,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (the call's deadline, which the server learns)
        resume: bool | None = None,
        **options: Unpack[values.Options],
    ) -> values.GenerateResult:
        """The whole completion of `prompt` in one answer; `timeout` in seconds."""
        if self._resumes(resume):
            async with self.stream(prompt, timeout=timeout, resume=True, **options) as events:
                return values.GenerateResult.from_events([event async for event in events])
        request = convert.fill_request(pb.GenerateRequest(), prompt, options)
        return convert.result_from_message(
            await self._call(lambda stub, seconds: stub.Generate(request, timeout=seconds), timeout)
        )

    def stream(
        self,
        prompt: values.Prompt,
        *,
        timeout: float | None = None,
        resume: bool | None = None,
        **options: Unpack[values.Options],
    ) -> AsyncCompletionStream[values.Event]:
        """The completion of `prompt` as it is generated: `Started`, `Delta`s, a `Finished` for each index, `Usage`."""
        return self._stream(prompt, options, timeout, resume, convert.event_from_message)

    def stream_messages(
        self,
        prompt: values.Prompt,
        *,
        timeout: float | None = None,
        resume: bool | None = None,
        **options: Unpack[values.Options],
    ) -> AsyncCompletionStream[pb.StreamGenerateResponse]:
        """As `stream`, but the protobuf messages themselves."""
        return self._stream(prompt, options, timeout, resume, lambda message: message)

    async def tokenize(
        self,
        prompt: str | Sequence[values.ChatMessage] | values.Chat,
        *,
        model: str = "",
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[int]:
        """The token ids of a text, or of a chat rendered with the model's template."""
        request = convert.fill_prompt(pb.TokenizeRequest(model=model), prompt)
        response = await self._call(lambda stub, seconds: stub.Tokenize(request, timeout=seconds), timeout)
        return list(response.token_ids)

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str = "",
        skip_special_tokens: bool | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> str:
        """The text of token ids; the server leaves special tokens out unless told otherwise."""
        request = convert.detokenize_request(token_ids, model, skip_special_tokens)
        response = await self._call(lambda stub, seconds: stub.Detokenize(request, timeout=seconds), timeout)
        return response.text

    async def get_model(
        self,
        model: str = "",
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> values.ModelInfo:
        """What is served, and its limits."""
        request = pb.GetModelRequest(model=model)
        return convert.model_from_message(
            await self._call(lambda stub, seconds: stub.GetModel(request, timeout=seconds), timeout)
        )

    async def is_ready(self, *, timeout: float = health.CHECK_TIMEOUT_S) -> bool:  # noqa: ASYNC109
        """Whether at least one target is ready for requests; `timeout` in seconds a target."""
        check_timeout(timeout)
        for target in self._targets:
            if await health.check_async(self._channel(target), health.GENERATION_SERVICE, timeout):
                return True
        return False

    async def wait_until_ready(self, timeout: float) -> None:  # noqa: ASYNC109
        """Returns when at least one target is ready.

        Raises:
            DeadlineExceeded: none was within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not await self.is_ready(timeout=health.poll_timeout(deadline)):
            if time.monotonic() + health.POLL_INTERVAL_S >= deadline:
                raise DeadlineExceeded(
                    f"none of {', '.join(self._targets)} was ready within {timeout:g} s",
                    status=grpc.StatusCode.DEADLINE_EXCEEDED,
                )
            await asyncio.sleep(health.POLL_INTERVAL_S)

    async def close(self) -> None:
        """Closes the channels; calls that still run are cancelled."""
        self._is_closed = True
        for channel in self._channels.values():
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _channel(self, target: str) -> grpc.aio.Channel:
        """The channel to `target`, opened at first use: a channel belongs to the loop that runs when it is made."""
        if target not in self._channels:
            self._channels[target] = _open_channel(target, self._credentials)
        return self._channels[target]

    def _stub(self, target: str) -> "GenerationServiceAsyncStub":
        if self._is_closed:
            raise closed()
        return GenerationServiceStub(self._channel(target))

    def _stream(
        self,
        prompt: values.Prompt,
        options: values.Options,
        timeout: float | None,
        resume: bool | None,
        decode: Callable[[pb.StreamGenerateResponse], _Item | None],
    ) -> AsyncCompletionStream[_Item]:
        request = convert.fill_request(pb.StreamGenerateRequest(), prompt, options)
        resumes = self._resumes(resume)
        attempts = self._patient_attempts(timeout) if resumes else self._attempts(timeout)
        return AsyncCompletionStream(self._stub, new_exchange(request, resumes), attempts, decode)

    def _resumes(self, resume: bool | None) -> bool:
        return self._resume if resume is None else resume

    def _attempts(self, timeout: float | None) -> Attempts:
        return Attempts(self._targets, next(self._turns), self._timeout if timeout is None else timeout)

    def _patient_attempts(self, timeout: float | None) -> PatientAttempts:
        seconds = self._timeout if timeout is None else timeout
        return PatientAttempts(self._targets, next(self._turns), seconds, self._resume_timeout)

    async def _call(
        self,
        call: "Callable[[GenerationServiceAsyncStub, float], Awaitable[_Response]]",
        timeout: float | None,  # noqa: ASYNC109
    ) -> _Response:
        attempts = self._attempts(timeout)
        while True:
            try:
                return await call(self._stub(attempts.target), attempts.remaining)
            except grpc.RpcError as error:
                delay = attempts.next_delay(error_from_rpc(error))
            await asyncio.sleep(delay)


def _open_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(target, channel_options(target))
    return grpc.aio.secure_channel(target, credentials, channel_options(target))


def _is_cancelled() -> bool:
    """Whether the running task itself was cancelled, and not only the call that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
