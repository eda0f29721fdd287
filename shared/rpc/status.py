"""The one table from exceptions to gRPC status, and `google.rpc.Status` details in both directions."""

from collections.abc import Iterator

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from shared.errors import (
    ERROR_DOMAIN,
    BatonError,
    ConfigError,
    DeadlineError,
    DuplicateRequestError,
    HandleError,
    HandshakeError,
    InvalidRequestError,
    KvTransferError,
    ModelLoadError,
    QueueFullError,
    Reason,
    UnavailableError,
)

DETAILS_KEY = "grpc-status-details-bin"

_DEFAULT_RETRY_AFTER_S = 1.0

# Where the same service takes work again before long. One that drains does not: another replica may, at once.
_REASONS_THAT_PASS = (Reason.NOT_READY, Reason.NO_PREFILL_REPLICA)

# A call with more than 8 KiB of metadata loses its status altogether, and errors quote what callers sent. The message
# goes twice: percent-encoded (at most 3 bytes for one), and with the values in a Status in base64 (4 for 3). The
# description of a field at fault repeats its beginning.
_MAX_MESSAGE_BYTES = 1024
_MAX_VALUE_BYTES = 256

STATUS_OF: dict[type[BatonError], grpc.StatusCode] = {
    ConfigError: grpc.StatusCode.FAILED_PRECONDITION,
    ModelLoadError: grpc.StatusCode.FAILED_PRECONDITION,
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    DuplicateRequestError: grpc.StatusCode.ALREADY_EXISTS,
    QueueFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    HandshakeError: grpc.StatusCode.FAILED_PRECONDITION,
    HandleError: grpc.StatusCode.FAILED_PRECONDITION,
    KvTransferError: grpc.StatusCode.DATA_LOSS,
}

_KIND_OF = {reason: kind for kind in STATUS_OF for reason in kind.reasons}


def status_code(error: BatonError) -> grpc.StatusCode:
    """The gRPC status of an error."""
    return STATUS_OF[type(error)]


def status_message(error: BatonError) -> str:
    """The error's message, cut where it is too long for a status."""
    return _cut(error.message, _MAX_MESSAGE_BYTES)


def trailing_metadata(error: BatonError) -> tuple[tuple[str, bytes], ...]:
    """The error as trailing metadata: a `google.rpc.Status` with its details.

    They are ErrorInfo; BadRequest, where a field of the request is at fault; RetryInfo, where it helps to wait.
    """
    metadata = {key: _cut(value, _MAX_VALUE_BYTES) for key, value in error.metadata.items()}
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=error.reason.value, domain=ERROR_DOMAIN, metadata=metadata)
    ]
    if isinstance(error, InvalidRequestError) and "field" in metadata:
        details.append(_bad_request(metadata["field"], error.message))
    retry_after_s = _retry_after_s(error)
    if retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(retry_after_s * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    code: int = status_code(error).value[0]
    status = status_pb2.Status(code=code, message=status_message(error), details=[_packed(item) for item in details])
    return ((DETAILS_KEY, status.SerializeToString()),)


def error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo | None:
    """The ErrorInfo that a peer of Baton attached to a failed call, if it did."""
    for detail in _details(error):
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            return info
    return None


def peer_error(error: grpc.aio.AioRpcError) -> BatonError | None:
    """A failed call as the error that the peer raised; None where the failure is not Baton's own."""
    info = error_info(error)
    if info is None or info.reason not in set(Reason):
        return None
    reason, message, metadata = Reason(info.reason), error.details() or "", dict(info.metadata)
    kind = _KIND_OF[reason]
    if kind is QueueFullError:
        return QueueFullError(message, _told_retry_after_s(error), metadata)
    return kind(message, reason, metadata)


def _details(error: grpc.aio.AioRpcError) -> Iterator[any_pb2.Any]:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            yield from status_pb2.Status.FromString(value.encode() if isinstance(value, str) else value).details


def _told_retry_after_s(error: grpc.aio.AioRpcError) -> float:
    for detail in _details(error):
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return float(retry.retry_delay.ToMilliseconds()) / 1000
    return _DEFAULT_RETRY_AFTER_S


def _retry_after_s(error: BatonError) -> float | None:
    if isinstance(error, QueueFullError):
        return error.retry_after_s
    return _DEFAULT_RETRY_AFTER_S if error.reason in _REASONS_THAT_PASS else None


def _bad_request(field: str, message: str) -> error_details_pb2.BadRequest:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=_cut(message, _MAX_VALUE_BYTES))
    return error_details_pb2.BadRequest(field_violations=[violation])


def _cut(text: str, max_bytes: int) -> str:
    encoded = text.encode()
    return text if len(encoded) <= max_bytes else encoded[: max_bytes - 3].decode(errors="ignore") + "…"


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
