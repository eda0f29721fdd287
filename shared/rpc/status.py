"""The one table from exceptions to gRPC status, and `google.rpc.Status` details in both directions."""

from collections.abc import Iterator

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from shared.errors import (
    ERROR_DOMAIN,
    BatonError,
    CancelledRequestError,
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
    UnimplementedFieldError,
)

DETAILS_KEY = "grpc-status-details-bin"

_DEFAULT_RETRY_AFTER_S = 1.0

# A call with more than 8 KiB of metadata loses its status altogether, and errors quote what callers sent. The message
# goes twice: percent-encoded (at most 3 bytes for one), and with the values in a Status in base64 (4 for 3).
_MAX_MESSAGE_BYTES = 1024
_MAX_VALUE_BYTES = 256

# Of several errors with one status, the last is the one whose reasons are not its default alone.
STATUS_OF: dict[type[BatonError], grpc.StatusCode] = {
    ConfigError: grpc.StatusCode.FAILED_PRECONDITION,
    ModelLoadError: grpc.StatusCode.FAILED_PRECONDITION,
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnimplementedFieldError: grpc.StatusCode.UNIMPLEMENTED,
    DuplicateRequestError: grpc.StatusCode.ALREADY_EXISTS,
    QueueFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    CancelledRequestError: grpc.StatusCode.CANCELLED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    HandshakeError: grpc.StatusCode.FAILED_PRECONDITION,
    HandleError: grpc.StatusCode.FAILED_PRECONDITION,
    KvTransferError: grpc.StatusCode.DATA_LOSS,
}


def status_code(error: BatonError) -> grpc.StatusCode:
    """The gRPC status of an error."""
    return STATUS_OF[type(error)]


def status_message(error: BatonError) -> str:
    """The error's message, cut where it is too long for a status."""
    return _cut(error.message, _MAX_MESSAGE_BYTES)


def trailing_metadata(error: BatonError) -> tuple[tuple[str, bytes], ...]:
    """The error as trailing metadata: a `google.rpc.Status` with ErrorInfo, and RetryInfo where it says when."""
    metadata = {key: _cut(value, _MAX_VALUE_BYTES) for key, value in error.metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=ERROR_DOMAIN, metadata=metadata)
    details = [_packed(info)]
    if isinstance(error, QueueFullError):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    code: int = status_code(error).value[0]
    status = status_pb2.Status(code=code, message=status_message(error), details=details)
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
    kinds = [kind for kind, code in STATUS_OF.items() if code == error.code()]
    reason, message, metadata = Reason(info.reason), error.details() or "", dict(info.metadata)
    if QueueFullError in kinds:
        return QueueFullError(message, _retry_after_s(error), metadata)
    if UnimplementedFieldError in kinds:
        return UnimplementedFieldError(metadata.get("field", ""))
    for kind in kinds:
        if kind.default_reason is reason:
            return kind(message, reason, metadata)
    return kinds[-1](message, reason, metadata) if kinds else None


def _details(error: grpc.aio.AioRpcError) -> Iterator[any_pb2.Any]:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            yield from status_pb2.Status.FromString(value.encode() if isinstance(value, str) else value).details


def _retry_after_s(error: grpc.aio.AioRpcError) -> float:
    for detail in _details(error):
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return float(retry.retry_delay.ToMilliseconds()) / 1000
    return _DEFAULT_RETRY_AFTER_S


def _cut(text: str, max_bytes: int) -> str:
    encoded = text.encode()
    return text if len(encoded) <= max_bytes else encoded[: max_bytes - 3].decode(errors="ignore") + "…"


def _packed(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
