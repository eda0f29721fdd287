from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

import grpc
import pytest
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from shared import errors
from shared.errors import (
    BatonError,
    ConfigError,
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
from shared.rpc.status import (
    DETAILS_KEY,
    STATUS_OF,
    error_info,
    peer_error,
    status_code,
    status_message,
    trailing_metadata,
)

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BatonError) and kind is not BatonError
]


def made(kind: type[BatonError]) -> BatonError:
    if kind is QueueFullError:
        return QueueFullError("full", retry_after_s=2.5, metadata={"queue_len": 3})
    return kind("it went wrong", metadata={"number": 7})


def failed_call(
    code: grpc.StatusCode, details: str, metadata: Sequence[tuple[str, str | bytes]] = ()
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details)


def received(error: BatonError) -> grpc.aio.AioRpcError:
    """The failed call that the other end of an aborted call sees."""
    return failed_call(status_code(error), error.message, trailing_metadata(error))


def details_of(error: BatonError) -> status_pb2.Status:
    ((key, value),) = trailing_metadata(error)
    assert key == DETAILS_KEY
    return status_pb2.Status.FromString(value)


def test_every_error_has_a_status() -> None:
    assert set(KINDS) == set(STATUS_OF)
    assert len(KINDS) == 10


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_through_a_call_unchanged(kind: type[BatonError]) -> None:
    sent = made(kind)
    back = peer_error(received(sent))
    assert type(back) is kind
    assert (back.message, back.reason, back.metadata) == (sent.message, sent.reason, sent.metadata)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (HandleError, Reason.HANDLE_RELEASED),
        (HandleError, Reason.HANDLE_FOREIGN),
        (HandleError, Reason.EPOCH_STALE),
        (HandleError, Reason.HANDLE_OUT_OF_RANGE),
        (HandleError, Reason.HANDLE_REPEATED),
        (HandleError, Reason.HANDLE_MALFORMED),
        (KvTransferError, Reason.KV_CHECKSUM_MISMATCH),
        (KvTransferError, Reason.KV_LAYOUT_MISMATCH),
        (InvalidRequestError, Reason.PROMPT_TOO_LONG),
        (UnavailableError, Reason.DRAINING),
        (ConfigError, Reason.CONFIG_INVALID),
        (ModelLoadError, Reason.MODEL_UNUSABLE),
        (HandshakeError, Reason.HANDSHAKE_MISMATCH),
    ],
)
def test_errors_of_one_status_are_told_apart(kind: type[BatonError], reason: Reason) -> None:
    back = peer_error(received(kind("wrong", reason)))
    assert type(back) is kind
    assert back.reason is reason


def test_the_details_are_a_status_with_error_info() -> None:
    status = details_of(DuplicateRequestError("taken", metadata={"request_id": "a"}))
    assert (status.code, status.message) == (6, "taken")
    info = error_details_pb2.ErrorInfo()
    (packed,) = status.details
    assert packed.Unpack(info)
    assert (info.domain, info.reason, dict(info.metadata)) == ("baton.v1", "REQUEST_ID_IN_USE", {"request_id": "a"})


def test_a_full_queue_says_when_to_try_again() -> None:
    status = details_of(QueueFullError("full", retry_after_s=1.25))
    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    assert (retry.retry_delay.seconds, retry.retry_delay.nanos) == (1, 250_000_000)


def test_when_to_try_again_comes_through_a_call() -> None:
    back = peer_error(received(QueueFullError("full", retry_after_s=2.5)))
    assert isinstance(back, QueueFullError)
    assert back.retry_after_s == 2.5


def test_a_failure_without_details_is_nobodys_error() -> None:
    error = failed_call(grpc.StatusCode.UNAVAILABLE, "connection refused")
    assert error_info(error) is None
    assert peer_error(error) is None


def test_another_domains_details_are_nobodys_error() -> None:
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(domain="example.com", reason="NOT_READY"))
    status = status_pb2.Status(code=14, details=[info]).SerializeToString()
    assert peer_error(failed_call(grpc.StatusCode.UNAVAILABLE, "", [(DETAILS_KEY, status)])) is None


def test_a_reason_of_another_version_is_nobodys_error() -> None:
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(domain="baton.v1", reason="NOT_INVENTED_YET"))
    status = status_pb2.Status(code=14, details=[info]).SerializeToString()
    error = failed_call(grpc.StatusCode.UNAVAILABLE, "", [(DETAILS_KEY, status)])
    found = error_info(error)
    assert found is not None
    assert found.reason == "NOT_INVENTED_YET"
    assert peer_error(error) is None


@pytest.mark.parametrize("text", ["x" * 1024, "é" * 512])
def test_a_message_that_fits_is_sent_whole(text: str) -> None:
    assert status_message(InvalidRequestError(text)) == text


@pytest.mark.parametrize(
    ("text", "sent"),
    [("x" * 1025, "x" * 1021 + "…"), ("é" * 513, "é" * 510 + "…"), ("€" * 5000, "€" * 340 + "…")],
)
def test_a_longer_message_is_cut_between_characters(text: str, sent: str) -> None:
    assert status_message(InvalidRequestError(text)) == sent
    assert details_of(InvalidRequestError(text)).message == sent


def test_values_are_cut_too() -> None:
    error = InvalidRequestError("unknown", metadata={"fits": "x" * 256, "long": "x" * 257})
    back = peer_error(received(error))
    assert back is not None
    assert back.metadata == {"fits": "x" * 256, "long": "x" * 253 + "…"}


def unpacked(error: BatonError, kind: type[Message]) -> list[Message]:
    """The details of one kind."""
    found = []
    for packed in details_of(error).details:
        detail = kind()
        if packed.Unpack(detail):
            found.append(detail)
    return found


def test_a_refused_field_is_a_bad_request_too() -> None:
    error = InvalidRequestError(
        "top_p is 2, and must be in (0, 1]", Reason.SAMPLING_INVALID, {"field": "sampling.top_p"}
    )
    (bad_request,) = unpacked(error, error_details_pb2.BadRequest)
    violation = error_details_pb2.BadRequest.FieldViolation(
        field="sampling.top_p", description="top_p is 2, and must be in (0, 1]"
    )
    assert bad_request == error_details_pb2.BadRequest(field_violations=[violation])


def test_a_field_that_two_services_differ_in_is_no_bad_request() -> None:
    error = HandshakeError("dtype differs", metadata={"field": "dtype", "ours": "float32", "theirs": "bfloat16"})
    assert unpacked(error, error_details_pb2.BadRequest) == []


@pytest.mark.parametrize(
    ("reason", "seconds"),
    [
        (Reason.NOT_READY, [1]),
        (Reason.NO_PREFILL_REPLICA, [1]),
        (Reason.DRAINING, []),
        (Reason.ENGINE_FAILED, []),
        (Reason.PREFILL_FAILED, []),
    ],
)
def test_it_is_said_where_waiting_helps(reason: Reason, seconds: list[int]) -> None:
    found = unpacked(UnavailableError("not now", reason), error_details_pb2.RetryInfo)
    assert found == [error_details_pb2.RetryInfo(retry_delay=Duration(seconds=value)) for value in seconds]


def test_the_longest_error_with_a_field_fits_into_a_calls_metadata() -> None:
    """8 KiB: the message percent-encoded, the details in base64, keys and 32 bytes an entry as HTTP/2 counts."""
    text = "é" * 5000
    error = InvalidRequestError(text, metadata={"field": text, "value": text, "bounds": text, "detail": text})
    ((key, value),) = trailing_metadata(error)
    message = quote(status_message(error), safe="")
    entries = {key: b64encode(value), "grpc-message": message, "grpc-status": "3"}
    assert sum(len(name) + len(content) + 32 for name, content in entries.items()) < 8192


def test_each_reason_belongs_to_one_kind_of_error() -> None:
    assert Counter(reason for kind in KINDS for reason in kind.reasons) == Counter(Reason)


def test_a_reason_of_another_kind_of_error_cannot_be_raised() -> None:
    with pytest.raises(AssertionError, match="HandleError has no reason QUEUE_FULL"):
        HandleError("wrong", Reason.QUEUE_FULL)
