from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from baton_client._wire import ErrorDetails, FieldViolation, decode_error_details, encode_health_request, is_serving


def _status(*details: Message) -> bytes:
    status = status_pb2.Status(code=3, message="no")
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    encoded: bytes = status.SerializeToString()
    return encoded


def test_details_are_read_as_google_writes_them() -> None:
    encoded = _status(
        error_details_pb2.Help(),
        error_details_pb2.ErrorInfo(reason="OTHER", domain="proxy"),
        error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="baton.v1", metadata={"a": "1", "b": "2"}),
        error_details_pb2.RetryInfo(retry_delay=Duration(seconds=2, nanos=500_000_000)),
    )
    assert decode_error_details(encoded) == ErrorDetails("QUEUE_FULL", {"a": "1", "b": "2"}, 2.5)


def test_every_field_that_is_wrong_is_named() -> None:
    violation = error_details_pb2.BadRequest.FieldViolation
    encoded = _status(
        error_details_pb2.BadRequest(field_violations=[violation(field="sampling.top_p", description="is 2")]),
        error_details_pb2.ErrorInfo(reason="SAMPLING_INVALID", domain="baton.v1"),
        error_details_pb2.BadRequest(field_violations=[violation(field="n"), violation(description="odd")]),
    )
    wrong = (FieldViolation("sampling.top_p", "is 2"), FieldViolation("n", ""), FieldViolation("", "odd"))
    assert decode_error_details(encoded) == ErrorDetails("SAMPLING_INVALID", field_violations=wrong)


def test_no_details_and_broken_details_are_none() -> None:
    assert decode_error_details(b"") == ErrorDetails()
    assert decode_error_details(_status()) == ErrorDetails()
    assert decode_error_details(b"\xff\xff\xff") == ErrorDetails()


def test_health_messages_are_those_of_grpc() -> None:
    request = health_pb2.HealthCheckRequest.FromString(encode_health_request("baton.v1.GenerationService"))
    assert request.service == "baton.v1.GenerationService"
    statuses = health_pb2.HealthCheckResponse
    for status in (statuses.UNKNOWN, statuses.SERVING, statuses.NOT_SERVING, statuses.SERVICE_UNKNOWN):
        assert is_serving(statuses(status=status).SerializeToString()) == (status == statuses.SERVING)
