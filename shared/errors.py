"""The exceptions of Baton and the closed set of reasons that callers see.

    BatonError
    ├── ConfigError               a config file or variable is wrong (exit code 2)
    ├── ModelLoadError            a model directory cannot be served
    ├── InvalidRequestError       the request itself is wrong, and would be again
    ├── UnimplementedFieldError   a field whose behaviour this version does not have
    ├── DuplicateRequestError     a live request has this id
    ├── QueueFullError            try again later
    ├── DeadlineError             the caller's time ran out
    ├── CancelledRequestError     the caller went away
    ├── UnavailableError          not ready, draining, or no peer to do the work
    ├── HandshakeError            two services that must agree do not
    ├── HandleError               a KV handle that must not be used
    └── KvTransferError           KV did not arrive as it was sent

Every one carries a `Reason` and metadata (numbers and names as strings), which become `google.rpc.ErrorInfo`.
"""

from collections.abc import Mapping
from enum import StrEnum

ERROR_DOMAIN = "baton.v1"


class Reason(StrEnum):
    """Closed set of `ErrorInfo.reason` values."""

    CONFIG_INVALID = "CONFIG_INVALID"
    MODEL_UNUSABLE = "MODEL_UNUSABLE"
    MALFORMED_MESSAGE = "MALFORMED_MESSAGE"
    PROMPT_MISSING = "PROMPT_MISSING"
    PROMPT_EMPTY = "PROMPT_EMPTY"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"
    EMBEDDINGS_INVALID = "EMBEDDINGS_INVALID"
    REQUEST_EXCEEDS_POOL = "REQUEST_EXCEEDS_POOL"
    MODEL_UNKNOWN = "MODEL_UNKNOWN"
    TOKEN_ID_OUT_OF_RANGE = "TOKEN_ID_OUT_OF_RANGE"  # noqa: S105 (no password)
    CHAT_INVALID = "CHAT_INVALID"
    SAMPLING_INVALID = "SAMPLING_INVALID"
    STOPPING_INVALID = "STOPPING_INVALID"
    REQUEST_ID_INVALID = "REQUEST_ID_INVALID"
    OUTPUT_INVALID = "OUTPUT_INVALID"
    CONSTRAINT_INVALID = "CONSTRAINT_INVALID"
    RESUME_INVALID = "RESUME_INVALID"
    FIELD_UNIMPLEMENTED = "FIELD_UNIMPLEMENTED"
    REQUEST_ID_IN_USE = "REQUEST_ID_IN_USE"
    QUEUE_FULL = "QUEUE_FULL"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    REQUEST_CANCELLED = "REQUEST_CANCELLED"
    NOT_READY = "NOT_READY"
    DRAINING = "DRAINING"
    ENGINE_FAILED = "ENGINE_FAILED"
    NO_PREFILL_REPLICA = "NO_PREFILL_REPLICA"
    PREFILL_FAILED = "PREFILL_FAILED"
    HANDSHAKE_MISMATCH = "HANDSHAKE_MISMATCH"
    PREFILL_PROTOCOL_VIOLATED = "PREFILL_PROTOCOL_VIOLATED"
    EPOCH_STALE = "EPOCH_STALE"
    HANDLE_UNKNOWN = "HANDLE_UNKNOWN"
    HANDLE_RELEASED = "HANDLE_RELEASED"
    HANDLE_FOREIGN = "HANDLE_FOREIGN"
    HANDLE_OUT_OF_RANGE = "HANDLE_OUT_OF_RANGE"
    HANDLE_REPEATED = "HANDLE_REPEATED"
    KV_BLOCK_RECYCLED = "KV_BLOCK_RECYCLED"
    KV_CHECKSUM_MISMATCH = "KV_CHECKSUM_MISMATCH"
    KV_TRANSFER_FAILED = "KV_TRANSFER_FAILED"


class BatonError(Exception):
    """Base of all errors that Baton raises on purpose."""

    default_reason: Reason

    def __init__(
        self, message: str, reason: Reason | None = None, metadata: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata = {key: str(value) for key, value in (metadata or {}).items()}


class ConfigError(BatonError):
    """A config file, key or variable is wrong; the message holds the path, what was found, what would do."""

    default_reason = Reason.CONFIG_INVALID


class ModelLoadError(BatonError):
    """A model cannot be found, or is of a kind that is not served."""

    default_reason = Reason.MODEL_UNUSABLE


class InvalidRequestError(BatonError):
    """The request is wrong in itself; sending it again would fail again."""

    default_reason = Reason.MALFORMED_MESSAGE


def require(is_inside: bool, field: str, value: object, bounds: str, reason: Reason) -> None:
    """Refuses a request's field whose value is out of its bounds.

    Raises:
        InvalidRequestError: unless `is_inside`; metadata: field, value, bounds.
    """
    if not is_inside:
        raise InvalidRequestError(
            f"{field} is {value}, and must be in {bounds}", reason, {"field": field, "value": value, "bounds": bounds}
        )


class UnimplementedFieldError(BatonError):
    """The request sets a field whose behaviour this version does not have."""

    default_reason = Reason.FIELD_UNIMPLEMENTED

    def __init__(self, field: str) -> None:
        super().__init__(f"field `{field}` is not implemented in this version", metadata={"field": field})


class DuplicateRequestError(BatonError):
    """A live request has the same id."""

    default_reason = Reason.REQUEST_ID_IN_USE


class QueueFullError(BatonError):
    """The bounded queue is full; `retry_after_s` says when to try again."""

    default_reason = Reason.QUEUE_FULL

    def __init__(self, message: str, retry_after_s: float, metadata: Mapping[str, object] | None = None) -> None:
        super().__init__(message, metadata=metadata)
        self.retry_after_s = retry_after_s


class DeadlineError(BatonError):
    """The caller's deadline passed before the work was done."""

    default_reason = Reason.DEADLINE_EXCEEDED


class CancelledRequestError(BatonError):
    """The caller went away."""

    default_reason = Reason.REQUEST_CANCELLED


class UnavailableError(BatonError):
    """The service, or the peer it needs, cannot take work now."""

    default_reason = Reason.NOT_READY


class HandshakeError(BatonError):
    """Two services differ in something they must agree on; metadata: field, ours, theirs."""

    default_reason = Reason.HANDSHAKE_MISMATCH


class HandleError(BatonError):
    """A KV handle is unknown, released, foreign, stale or out of range."""

    default_reason = Reason.HANDLE_UNKNOWN


class KvTransferError(BatonError):
    """KV did not arrive whole and unchanged; the bytes that did arrive must not be used."""

    default_reason = Reason.KV_TRANSFER_FAILED
