"""The exceptions of the client.

    BatonClientError
    ├── InvalidArgument       the request is wrong in itself
    ├── FailedPrecondition    the server is not in a state for it
    ├── NotFound
    ├── AlreadyExists         a live request has this id
    ├── Unimplemented         a field or call that this server does not have
    ├── ResourceExhausted     the server's queue is full; see `retry_after`
    ├── Unavailable           no server, or one that takes no work now
    ├── DeadlineExceeded      the call's time ran out
    ├── Cancelled             the call was cancelled
    ├── DataLoss              KV was lost between two services
    ├── Internal              the server failed
    └── Unknown               the server failed, and did not say how

A status that has no class of its own is a plain `BatonClientError`. `reason` tells the causes of one status apart:
`except InvalidArgument as error: if error.reason == "PROMPT_TOO_LONG"`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import grpc

from baton_client._wire import FieldViolation, decode_error_details

_DETAILS_KEY = "grpc-status-details-bin"


class BatonClientError(Exception):
    """A call failed.

    Attributes:
        message: what the server, or gRPC, says about it.
        status: the gRPC status code.
        reason: one of Baton's closed set of reasons (`PROMPT_TOO_LONG`, `QUEUE_FULL`, …); empty if none was sent.
        metadata: the numbers and names that belong to the reason.
        retry_after: seconds after which the server suggests to try again, or None.
        field_violations: the fields of the request that are wrong, and what is wrong with each.
    """

    def __init__(
        self,
        message: str,
        *,
        status: grpc.StatusCode,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        field_violations: Sequence[FieldViolation] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after
        self.field_violations = tuple(field_violations)


class InvalidArgument(BatonClientError):  # noqa: N818 (named after the gRPC statuses, as are all below)
    """The request is wrong in itself; sending it again would fail again."""


class FailedPrecondition(BatonClientError):  # noqa: N818
    """The server is not in a state to do this."""


class NotFound(BatonClientError):  # noqa: N818
    """What the request names does not exist."""


class AlreadyExists(BatonClientError):  # noqa: N818
    """A live request has the same id."""


class Unimplemented(BatonClientError):  # noqa: N818
    """The server does not have this field or call; `metadata["field"]` names a field."""


class ResourceExhausted(BatonClientError):  # noqa: N818
    """The server has no room; `retry_after` says when to try again."""


class Unavailable(BatonClientError):  # noqa: N818
    """No server answers, or none takes work now."""


class DeadlineExceeded(BatonClientError):  # noqa: N818
    """The call's time ran out."""


class Cancelled(BatonClientError):  # noqa: N818
    """The call was cancelled."""


class DataLoss(BatonClientError):  # noqa: N818
    """KV did not get from one service to the other; the same request may well succeed."""


class Internal(BatonClientError):  # noqa: N818
    """The server failed."""


class Unknown(BatonClientError):  # noqa: N818
    """The server failed in a way that it did not foresee."""


_CLASSES: dict[grpc.StatusCode, type[BatonClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.DATA_LOSS: DataLoss,
    grpc.StatusCode.INTERNAL: Internal,
    grpc.StatusCode.UNKNOWN: Unknown,
}


def invalid_argument(message: str, field: str, value: object) -> InvalidArgument:
    """The exception for a value that the client itself refuses, as the server's would be."""
    return InvalidArgument(
        message,
        status=grpc.StatusCode.INVALID_ARGUMENT,
        reason="MALFORMED_MESSAGE",
        metadata={"field": field, "value": repr(value)},
        field_violations=(FieldViolation(field, message),),
    )


def closed() -> Cancelled:
    """The exception for a call that ends, or never begins, because its client was closed."""
    return Cancelled("the client was closed", status=grpc.StatusCode.CANCELLED)


def error_from_rpc(error: grpc.RpcError) -> BatonClientError:
    """The client's exception for one that gRPC raised, sync or asyncio."""
    status = error.code()
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    encoded = next((value for key, value in trailers if key == _DETAILS_KEY), b"")
    details = decode_error_details(encoded if isinstance(encoded, bytes) else encoded.encode())
    return _CLASSES.get(status, BatonClientError)(
        error.details() or status.name,
        status=status,
        reason=details.reason,
        metadata=details.metadata,
        retry_after=details.retry_after,
        field_violations=details.field_violations,
    )
