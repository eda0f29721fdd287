"""Structured logs: one event a line, to stderr, as JSON or for people."""

import io
import logging
import sys
from contextlib import suppress
from typing import Literal, TextIO, cast

import structlog


class _Unfailing(io.TextIOBase):
    """A stream whose reader may go away: what cannot be written is lost, and no request fails for it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def configure_logging(service: str, level: str, log_format: Literal["console", "json"]) -> None:
    """Sets up logging for the process.

    Args:
        service: name that every line carries as `service`.
        level: lowest level shown, such as "info".
        log_format: "json" (one object a line) or "console" (aligned, coloured on a terminal).
    """
    if log_format == "json":
        renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Unfailing(sys.stderr))),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service)
