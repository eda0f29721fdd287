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


def test_lines_that_the_message_has_are_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    error = InvalidArgument(
        "no grammar: line 1\n^",
        status=grpc.StatusCode.INVALID_ARGUMENT,
        metadata={"detail": "line 1\n^", "other": "a\nb", "short": "line 1"},
    )
    print_failure(error, Target("localhost:1", 1.0, resumes=False), has_begun=True)
    assert capsys.readouterr().err == (
        "error: INVALID_ARGUMENT: no grammar: line 1\nerror: ^\n  other: a\nb\n  short: line 1\n"
    )
