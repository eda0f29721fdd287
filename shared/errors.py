"""The exceptions of Baton and the closed set of reasons that callers see.

    BatonError
    ├── ConfigError               a config file or variable is wrong (exit code 2)
    ├── ModelLoadError            a model directory cannot be served
    ├── InvalidRequestError       the request itself is wrong, and would be again
    ├── DuplicateRequestError     a live request has this id
    ├── QueueFullError            try again later
    ├── DeadlineError             the caller's time ran out
    ├── UnavailableError          not ready, draining, or no peer to do the work
    ├── HandshakeError            two services that must agree do not
    ├── HandleError               a KV handle that must not be used
    └── KvTransferError           KV did not arrive as it was sent

Every one carries a `Reason` and metadata (numbers and names as strings), which become `google.rpc.ErrorInfo`. A reason
belongs to one of them, and so to one status; docs/errors.md tells callers about each.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

ERROR_DOMAIN = "baton.v1"


class Reason(StrEnum):
    """Closed set of `ErrorInfo.reason` values."""

    CONFIG_INVALID = "CONFIG_INVALID"
    MODEL_UNUSABLE = "MODEL_UNUSABLE"
    MALFORMED_MESSAGE = "MALFORMED_MESSAGE"
    MODEL_UNKNOWN = "MODEL_UNKNOWN"
    REQUEST_ID_INVALID = "REQUEST_ID_INVALID"
    PROMPT_MISSING = "PROMPT_MISSING"
    PROMPT_EMPTY = "PROMPT_EMPTY"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"
    CHAT_INVALID = "CHAT_INVALID"
    EMBEDDINGS_INVALID = "EMBEDDINGS_INVALID"
    TOKEN_ID_OUT_OF_RANGE = "TOKEN_ID_OUT_OF_RANGE"  # noqa: S105 (no password)
    SAMPLING_INVALID = "SAMPLING_INVALID"
    CONSTRAINT_INVALID = "CONSTRAINT_INVALID"
    STOPPING_INVALID = "STOPPING_INVALID"
    OUTPUT_INVALID = "OUTPUT_INVALID"
    RESUME_INVALID = "RESUME_INVALID"
    REQUEST_EXCEEDS_POOL = "REQUEST_EXCEEDS_POOL"
    PREFILL_REQUEST_INVALID = "PREFILL_REQUEST_INVALID"
    REQUEST_ID_IN_USE = "REQUEST_ID_IN_USE"
    QUEUE_FULL = "QUEUE_FULL"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_READY = "NOT_READY"
    DRAINING = "DRAINING"
    ENGINE_FAILED = "ENGINE_FAILED"
    NO_PREFILL_REPLICA = "NO_PREFILL_REPLICA"
    PREFILL_FAILED = "PREFILL_FAILED"
    PREFILL_PROTOCOL_VIOLATED = "PREFILL_PROTOCOL_VIOLATED"
    HANDSHAKE_MISMATCH = "HANDSHAKE_MISMATCH"
    HANDLE_UNKNOWN = "HANDLE_UNKNOWN"
    HANDLE_RELEASED = "HANDLE_RELEASED"
    HANDLE_FOREIGN = "HANDLE_FOREIGN"
    HANDLE_MALFORMED = "HANDLE_MALFORMED"
    HANDLE_OUT_OF_RANGE = "HANDLE_OUT_OF_RANGE"
    HANDLE_REPEATED = "HANDLE_REPEATED"
    EPOCH_STALE = "EPOCH_STALE"
    KV_TRANSFER_FAILED = "KV_TRANSFER_FAILED"
    KV_LAYOUT_MISMATCH = "KV_LAYOUT_MISMATCH"
    KV_BLOCK_RECYCLED = "KV_BLOCK_RECYCLED"
    KV_CHECKSUM_MISMATCH = "KV_CHECKSUM_MISMATCH"


class BatonError(Exception):
    """Base of all errors that Baton raises on purpose.

    Attributes:
        reasons: those that belong to errors of this class, the default one first.
        message: for people.
        metadata: the numbers and names that belong to the reason; `field` is the path of the request's field at fault.
    """

    reasons: ClassVar[tuple[Reason, ...]]

    def __init__(
        self, message: str, reason: Reason | None = None, metadata: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.reasons[0]
        assert self.reason in self.reasons, f"{type(self).__name__} has no reason {self.reason}"
        self.metadata = {key: str(value) for key, value in (metadata or {}).items()}


class ConfigError(BatonError):
    """A config file, key or variable is wrong; the message holds the path, what was found, what would do."""

    reasons = (Reason.CONFIG_INVALID,)


class ModelLoadError(BatonError):
    """A model cannot be found, or is of a kind that is not served."""

    reasons = (Reason.MODEL_UNUSABLE,)


class InvalidRequestError(BatonError):
    """The request is wrong in itself; sending it again would fail again."""

    reasons = (
        Reason.MALFORMED_MESSAGE,
        Reason.MODEL_UNKNOWN,
        Reason.REQUEST_ID_INVALID,
        Reason.PROMPT_MISSING,
        Reason.PROMPT_EMPTY,
        Reason.PROMPT_TOO_LONG,
        Reason.CHAT_INVALID,
        Reason.EMBEDDINGS_INVALID,
        Reason.TOKEN_ID_OUT_OF_RANGE,
        Reason.SAMPLING_INVALID,
        Reason.CONSTRAINT_INVALID,
        Reason.STOPPING_INVALID,
        Reason.OUTPUT_INVALID,
        Reason.RESUME_INVALID,
        Reason.REQUEST_EXCEEDS_POOL,
        Reason.PREFILL_REQUEST_INVALID,
    )


def require(is_inside: bool, field: str, value: object, bounds: str, reason: Reason) -> None:
    """Refuses a request's field whose value is out of its bounds.

    Raises:
        InvalidRequestError: unless `is_inside`; metadata: field, value, bounds.
    """
    if not is_inside:
        raise InvalidRequestError(
            f"{field} is {value}, and must be in {bounds}", reason, {"field": field, "value": value, "bounds": bounds}
        )


class DuplicateRequestError(BatonError):
    """A live request has the same id."""

    reasons = (Reason.REQUEST_ID_IN_USE,)


class QueueFullError(BatonError):
    """The bounded queue is full; `retry_after_s` says when to try again."""

    reasons = (Reason.QUEUE_FULL,)

    def __init__(self, message: str, retry_after_s: float, metadata: Mapping[str, object] | None = None) -> None:
        super().__init__(message, metadata=metadata)
        self.retry_after_s = retry_after_s


class DeadlineError(BatonError):
    """The caller's deadline passed before the work was done."""

    reasons = (Reason.DEADLINE_EXCEEDED,)


class UnavailableError(BatonError):
    """The service, or the peer it needs, cannot take work now."""

    reasons = (
        Reason.NOT_READY,
        Reason.DRAINING,
        Reason.ENGINE_FAILED,
        Reason.NO_PREFILL_REPLICA,
        Reason.PREFILL_FAILED,
        Reason.PREFILL_PROTOCOL_VIOLATED,
    )


class HandshakeError(BatonError):
    """Two services differ in something they must agree on; metadata: field, ours, theirs."""

    reasons = (Reason.HANDSHAKE_MISMATCH,)


class HandleError(BatonError):
    """A KV handle is unknown, released, foreign, stale or out of range."""

    reasons = (
        Reason.HANDLE_UNKNOWN,
        Reason.HANDLE_RELEASED,
        Reason.HANDLE_FOREIGN,
        Reason.HANDLE_MALFORMED,
        Reason.HANDLE_OUT_OF_RANGE,
        Reason.HANDLE_REPEATED,
        Reason.EPOCH_STALE,
    )


class KvTransferError(BatonError):
    """KV did not arrive whole and unchanged; the bytes that did arrive must not be used."""

    reasons = (
        Reason.KV_TRANSFER_FAILED,
        Reason.KV_LAYOUT_MISMATCH,
        Reason.KV_BLOCK_RECYCLED,
        Reason.KV_CHECKSUM_MISMATCH,
    )
