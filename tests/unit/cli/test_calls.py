import grpc
import pytest

from baton_client import FieldViolation, InvalidArgument
from cli.calls import Target, print_failure


def test_fields_that_are_wrong_are_each_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    error = InvalidArgument(
        "sampling.top_p is 2",
        status=grpc.StatusCode.INVALID_ARGUMENT,
        reason="SAMPLING_INVALID",
        metadata={"value": "2", "field": "sampling.top_p"},
        field_violations=[FieldViolation("sampling.top_p", "is 2"), FieldViolation("sampling.min_p", "is 3")],
    )
    print_failure(error, Target("localhost:1", 1.0, resumes=False), has_begun=False)
    assert capsys.readouterr().err == (
        "error: INVALID_ARGUMENT (SAMPLING_INVALID): sampling.top_p is 2\n"
        "  field: sampling.top_p\n"
        "  value: 2\n"
        "  sampling.min_p: is 3\n"
    )
