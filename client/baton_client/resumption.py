"""What a stream is asked for, again where a server was lost, and which of the answers the caller sees.

Nothing here knows gRPC or a clock: requests come out, messages go through.

A request that can be resumed goes out with a seed and asks for token ids. The tokens of each completion are kept as
they arrive. When a server is lost, the next one gets the same request with these tokens in `resume`, and goes on after
them exactly as the first would have. What it says twice is kept from the caller: `started`, and `finished` of a
completion that had ended before.
"""

import secrets
from typing import Protocol

from baton.v1 import generation_pb2 as pb

MAX_REQUEST_ID_LEN = 128
"""Most characters of a request id that a server takes."""


class Exchange(Protocol):
    """The requests of one stream, and what becomes of the answers."""

    @property
    def is_complete(self) -> bool:
        """Whether all has been said, so that the loss of the server no longer matters."""

    def next_request(self) -> pb.StreamGenerateRequest:
        """The request of the next attempt."""

    def pass_on(self, message: pb.StreamGenerateResponse) -> pb.StreamGenerateResponse | None:
        """What the caller sees of a message that arrived, which may be changed; None for nothing."""


class PlainExchange:
    """One request, whose answers are passed on as they are."""

    def __init__(self, request: pb.StreamGenerateRequest) -> None:
        self._request = request

    @property
    def is_complete(self) -> bool:
        """See `Exchange`; the call's own status tells."""
        return False

    def next_request(self) -> pb.StreamGenerateRequest:
        """See `Exchange`."""
        return self._request

    def pass_on(self, message: pb.StreamGenerateResponse) -> pb.StreamGenerateResponse | None:
        """See `Exchange`."""
        return message


class ResumableExchange:
    """A stream that one server after another can go on with.

    Attempt k > 1 of a request with an id, the caller's or the first server's, has the id "ID~k": the lost call may be
    live somewhere still. The caller sees the first id all along. Of `usage` the caller sees the last server's, whose
    counts include the resumed tokens; its `cached_tokens` and `timings` are of the last attempt alone.

    Args:
        request: what the caller wants; is not changed. Completions may have been begun before (`resume`).
    """

    def __init__(self, request: pb.StreamGenerateRequest) -> None:
        self._request = pb.StreamGenerateRequest()
        self._request.CopyFrom(request)
        self._request.output.token_ids = True
        if not request.sampling.HasField("seed"):
            self._request.sampling.seed = secrets.randbits(64)
        self._wants_token_ids = request.output.token_ids
        self._request_id = request.request_id
        self._token_ids = {begun.index: list(begun.token_ids) for begun in request.resume}
        self._finished: set[int] = set()
        self._num_attempts = 0
        self._has_started = False
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        """See `Exchange`; `usage` is the last message."""
        return self._is_complete

    def next_request(self) -> pb.StreamGenerateRequest:
        """See `Exchange`."""
        self._num_attempts += 1
        request = pb.StreamGenerateRequest()
        request.CopyFrom(self._request)
        if self._num_attempts == 1:
            return request
        if self._request_id:
            suffix = f"~{self._num_attempts}"
            request.request_id = self._request_id[: MAX_REQUEST_ID_LEN - len(suffix)] + suffix
        if self._has_started:
            request.output.ClearField("prompt_logprobs")
        request.ClearField("resume")
        for index, token_ids in sorted(self._token_ids.items()):
            request.resume.add(index=index, token_ids=token_ids)
        return request

    def pass_on(self, message: pb.StreamGenerateResponse) -> pb.StreamGenerateResponse | None:
        """See `Exchange`."""
        match message.WhichOneof("event"):
            case "started":
                return self._pass_on_started(message)
            case "delta":
                self._token_ids.setdefault(message.delta.index, []).extend(message.delta.token_ids)
                if not self._wants_token_ids:
                    message.delta.ClearField("token_ids")
            case "finished":
                if message.finished.index in self._finished:
                    return None
                self._finished.add(message.finished.index)
            case "usage":
                self._is_complete = True
        return message

    def _pass_on_started(self, message: pb.StreamGenerateResponse) -> pb.StreamGenerateResponse | None:
        if self._has_started:
            return None
        self._has_started = True
        if self._request_id:
            message.started.request_id = self._request_id
        else:
            self._request_id = message.started.request_id
        return message


def new_exchange(request: pb.StreamGenerateRequest, is_resumable: bool) -> Exchange:
    """The exchange that begins with `request`."""
    return ResumableExchange(request) if is_resumable else PlainExchange(request)
