import json
from collections.abc import Iterator

import pytest
import structlog

from shared.telemetry.logs import configure_logging


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Logging is the process's: other tests get it back as it was."""
    config = structlog.get_config()
    yield
    structlog.configure(**config)
    structlog.contextvars.clear_contextvars()


def test_json_is_one_object_a_line_with_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("decode", "info", "json")
    structlog.get_logger().info("ready", num_threads=2, text="ä\n")
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert entry.pop("timestamp").endswith("Z")
    assert entry == {"service": "decode", "event": "ready", "level": "info", "num_threads": 2, "text": "ä\n"}


def test_lower_levels_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("decode", "warning", "json")
    structlog.get_logger().info("not shown")
    structlog.get_logger().error("shown")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["shown"]


def test_an_exception_is_told_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("prefill", "info", "json")
    try:
        int("seven")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: invalid literal for int() with base 10: 'seven'" in json.loads(line)["exception"]


def test_console_lines_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("prefill", "debug", "console")
    structlog.get_logger().debug("step", num_rows=3)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "step" in captured.err
    assert "num_rows=3" in captured.err
    assert "service=prefill" in captured.err
    assert "\x1b" not in captured.err, "no colours where it is no terminal"
