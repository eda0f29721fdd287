"""The client for threads: every call blocks until its answer, or its next event, is there."""

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar, Unpack

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

_Item = TypeVar("_Item")
_Response = TypeVar("_Response")


class _RunningCall(Protocol):
    """What gRPC returns for a server stream."""

    def __next__(self) -> pb.StreamGenerateResponse: ...

    def cancel(self) -> bool: ...


class CompletionStream(Generic[_Item]):
    """Events of one completion as they arrive.

    The call starts when the first event is asked for. Leaving early ends it on the server too: by `close`, by the end
    of a `with` block, or by dropping the stream.

    Raises (from iteration):
        BatonClientError: the call failed; `DeadlineExceeded`, `Unavailable` and so on by its status.
    """

    def __init__(
        self,
        stub_of: Callable[[str], GenerationServiceStub],
        exchange: Exchange,
        attempts: Attempts,
        decode: Callable[[pb.StreamGenerateResponse], _Item | None],
    ) -> None:
        self._stub_of = stub_of
        self._exchange = exchange
        self._attempts = attempts
        self._decode = decode
        self._call: _RunningCall | None = None
        self._closing = threading.Event()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _Item:
        while (message := self._next_message()) is not None:
            if (item := self._decode(message)) is not None:
                return item
        self.close()
        raise StopIteration

    def _next_message(self) -> pb.StreamGenerateResponse | None:
        """The next message that the caller sees, from another target if one is lost and may be; None at the end."""
        while not self._closing.is_set():
            try:
                message = next(self._running_call(), None)
            except grpc.RpcError as error:
                self._recover(error)
                continue
            if message is None:
                return None
            if (seen := self._exchange.pass_on(message)) is not None:
                self._attempts.note_arrival()
                return seen
        return None

    def _running_call(self) -> _RunningCall:
        if self._call is None:
            stub = self._stub_of(self._attempts.target)
            self._call = stub.StreamGenerate(self._exchange.next_request(), timeout=self._attempts.remaining)
            if self._closing.is_set():  # by another thread, which found no call to cancel
                self._call.cancel()
        return self._call

    def _recover(self, error: grpc.RpcError) -> None:
        """Prepares another attempt, or raises; ends a stream that is closed or has said all."""
        self._call = None
        if self._exchange.is_complete:
            self._closing.set()
        if self._closing.is_set():
            return
        failure = error_from_rpc(error)
        try:
            delay = self._attempts.next_delay(failure)
        except BatonClientError:
            self._closing.set()
            raise failure from error
        self._closing.wait(delay)

    def close(self) -> None:
        """Cancels the call if it still runs; iteration ends."""
        self._closing.set()
        call = self._call
        if call is not None:
            call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class BatonClient:
    """Calls the decode services at `targets`.

        with BatonClient("localhost:50051") as client:
            for event in client.stream("The capital of France is", temperature=0, max_tokens=16):
                if isinstance(event, Delta):
                    print(event.text, end="", flush=True)

    Calls go round-robin over the targets, from a random one on, each over a channel that is kept open. A call that
    finds its target unavailable before anything was streamed goes on to the next target, each once at most. It may be
    used from several threads.

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
        self._channels = {target: _open_channel(target, credentials) for target in self._targets}
        self._stubs = {target: GenerationServiceStub(channel) for target, channel in self._channels.items()}
        self._turns = turns(len(self._targets))

    def generate(
        self,
        prompt: values.Prompt,
        *,
        timeout: float | None = None,
        resume: bool | None = None,
        **options: Unpack[values.Options],
    ) -> values.GenerateResult:
        """The whole completion of `prompt` in one answer; `timeout` in seconds."""
        if self._resumes(resume):
            with self.stream(prompt, timeout=timeout, resume=True, **options) as events:
                return values.GenerateResult.from_events(events)
        request = convert.fill_request(pb.GenerateRequest(), prompt, options)
        return convert.result_from_message(
            self._call(lambda stub, seconds: stub.Generate(request, timeout=seconds), timeout)
        )

    def stream(
        self,
        prompt: values.Prompt,
        *,
        timeout: float | None = None,
        resume: bool | None = None,
        **options: Unpack[values.Options],
    ) -> CompletionStream[values.Event]:
        """The completion of `prompt` as it is generated: `Started`, `Delta`s, a `Finished` for each index, `Usage`."""
        return self._stream(prompt, options, timeout, resume, convert.event_from_message)

    def stream_messages(
        self,
        prompt: values.Prompt,
        *,
        timeout: float | None = None,
        resume: bool | None = None,
        **options: Unpack[values.Options],
    ) -> CompletionStream[pb.StreamGenerateResponse]:
        """As `stream`, but the protobuf messages themselves."""
        return self._stream(prompt, options, timeout, resume, lambda message: message)

    def tokenize(
        self, prompt: str | Sequence[values.ChatMessage] | values.Chat, *, model: str = "", timeout: float | None = None
    ) -> list[int]:
        """The token ids of a text, or of a chat rendered with the model's template."""
        request = convert.fill_prompt(pb.TokenizeRequest(model=model), prompt)
        response = self._call(lambda stub, seconds: stub.Tokenize(request, timeout=seconds), timeout)
        return list(response.token_ids)

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str = "",
        skip_special_tokens: bool | None = None,
        timeout: float | None = None,
    ) -> str:
        """The text of token ids; the server leaves special tokens out unless told otherwise."""
        request = convert.detokenize_request(token_ids, model, skip_special_tokens)
        return self._call(lambda stub, seconds: stub.Detokenize(request, timeout=seconds), timeout).text

    def get_model(self, model: str = "", *, timeout: float | None = None) -> values.ModelInfo:
        """What is served, and its limits."""
        request = pb.GetModelRequest(model=model)
        return convert.model_from_message(
            self._call(lambda stub, seconds: stub.GetModel(request, timeout=seconds), timeout)
        )

    def is_ready(self, *, timeout: float = health.CHECK_TIMEOUT_S) -> bool:
        """Whether at least one target is ready for requests; `timeout` in seconds a target."""
        check_timeout(timeout)
        channels = self._channels.values()
        return any(health.check(channel, health.GENERATION_SERVICE, timeout) for channel in channels)

    def wait_until_ready(self, timeout: float) -> None:
        """Returns when at least one target is ready.

        Raises:
            DeadlineExceeded: none was within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self.is_ready(timeout=health.poll_timeout(deadline)):
            if time.monotonic() + health.POLL_INTERVAL_S >= deadline:
                raise DeadlineExceeded(
                    f"none of {', '.join(self._targets)} was ready within {timeout:g} s",
                    status=grpc.StatusCode.DEADLINE_EXCEEDED,
                )
            time.sleep(health.POLL_INTERVAL_S)

    def close(self) -> None:
        """Closes the channels; calls that still run are cancelled."""
        self._is_closed = True
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _stub(self, target: str) -> GenerationServiceStub:
        if self._is_closed:
            raise closed()
        return self._stubs[target]

    def _stream(
        self,
        prompt: values.Prompt,
        options: values.Options,
        timeout: float | None,
        resume: bool | None,
        decode: Callable[[pb.StreamGenerateResponse], _Item | None],
    ) -> CompletionStream[_Item]:
        request = convert.fill_request(pb.StreamGenerateRequest(), prompt, options)
        resumes = self._resumes(resume)
        attempts = self._patient_attempts(timeout) if resumes else self._attempts(timeout)
        return CompletionStream(self._stub, new_exchange(request, resumes), attempts, decode)

    def _resumes(self, resume: bool | None) -> bool:
        return self._resume if resume is None else resume

    def _attempts(self, timeout: float | None) -> Attempts:
        return Attempts(self._targets, next(self._turns), self._timeout if timeout is None else timeout)

    def _patient_attempts(self, timeout: float | None) -> PatientAttempts:
        seconds = self._timeout if timeout is None else timeout
        return PatientAttempts(self._targets, next(self._turns), seconds, self._resume_timeout)

    def _call(self, call: Callable[[GenerationServiceStub, float], _Response], timeout: float | None) -> _Response:
        attempts = self._attempts(timeout)
        while True:
            try:
                return call(self._stub(attempts.target), attempts.remaining)
            except grpc.RpcError as error:
                delay = attempts.next_delay(error_from_rpc(error))
            time.sleep(delay)


def _open_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    if credentials is None:
        return grpc.insecure_channel(target, channel_options(target))
    return grpc.secure_channel(target, credentials, channel_options(target))
