"""The few messages of google.rpc and grpc.health.v1 that the client reads and writes.

They are described here, field numbers as in google/rpc/status.proto, google/rpc/error_details.proto and
grpc/health/v1/health.proto, so that the client needs grpcio and protobuf only. They live in a descriptor pool of their
own: a program may import googleapis-common-protos or grpcio-health-checking beside this without a clash.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

ERROR_DOMAIN = "baton.v1"
HEALTH_CHECK_METHOD = "/grpc.health.v1.Health/Check"
_SERVING = 1

_FILE = """
name: "baton_client/wire.proto" package: "wire" syntax: "proto3"
message_type { name: "Status"
  field { name: "details" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".wire.Detail" } }
message_type { name: "Detail"
  field { name: "type_url" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_BYTES } }
message_type { name: "ErrorInfo"
  field { name: "reason" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "domain" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "metadata" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE
          type_name: ".wire.ErrorInfo.MetadataEntry" }
  nested_type { name: "MetadataEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING } } }
message_type { name: "RetryInfo"
  field { name: "retry_delay" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".wire.Duration" } }
message_type { name: "BadRequest"
  field { name: "field_violations" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
          type_name: ".wire.FieldViolation" } }
message_type { name: "FieldViolation"
  field { name: "field" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "description" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING } }
message_type { name: "Duration"
  field { name: "seconds" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 }
  field { name: "nanos" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 } }
message_type { name: "HealthCheckRequest"
  field { name: "service" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING } }
message_type { name: "HealthCheckResponse"
  field { name: "status" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 } }
"""

_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()).SerializeToString())


def _new(name: str) -> Any:  # noqa: ANN401 (classes made at run time have no static type)
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"wire.{name}"))()


def _parsed(name: str, data: bytes) -> Any:  # noqa: ANN401
    parsed = _new(name)
    parsed.ParseFromString(data)
    return parsed


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A field of the request that is wrong: its path, such as `sampling.top_p`, and what is wrong with it."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """What a google.rpc.Status says beyond code and message; `retry_after` in seconds."""

    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after: float | None = None
    field_violations: tuple[FieldViolation, ...] = ()


def decode_error_details(status: bytes) -> ErrorDetails:
    """What a `grpc-status-details-bin` trailer says.

    That is the first ErrorInfo of Baton's domain, the first RetryInfo, and the violations of every BadRequest. Bytes
    that cannot be parsed give no details: the call's own status must still reach the caller.
    """
    try:
        details = [(detail.type_url.rpartition("/")[2], detail.value) for detail in _parsed("Status", status).details]
        infos, retries, bad_requests = (
            [_parsed(name, value) for type_name, value in details if type_name == f"google.rpc.{name}"]
            for name in ("ErrorInfo", "RetryInfo", "BadRequest")
        )
    except message.DecodeError:
        return ErrorDetails()
    info = next((info for info in infos if info.domain == ERROR_DOMAIN), None)
    delay = retries[0].retry_delay if retries else None
    return ErrorDetails(
        reason=info.reason if info else "",
        metadata=dict(info.metadata) if info else {},
        retry_after=delay.seconds + delay.nanos / 1e9 if delay is not None else None,
        field_violations=tuple(
            FieldViolation(violation.field, violation.description)
            for bad_request in bad_requests
            for violation in bad_request.field_violations
        ),
    )


def encode_health_request(service: str) -> bytes:
    """A grpc.health.v1.HealthCheckRequest for `service`."""
    request = _new("HealthCheckRequest")
    request.service = service
    data: bytes = request.SerializeToString()
    return data


def is_serving(response: bytes) -> bool:
    """Whether a grpc.health.v1.HealthCheckResponse says SERVING."""
    serving: bool = _parsed("HealthCheckResponse", response).status == _SERVING
    return serving
