import asyncio
import io
import os

import pytest
from rich.console import Console

from cli.fleet import _environment, split_lines
from cli.up import PrefixedOutput


async def _split(*chunks: bytes) -> list[str]:
    reader = asyncio.StreamReader()
    for chunk in chunks:
        reader.feed_data(chunk)
    reader.feed_eof()
    return [line async for line in split_lines(reader)]


async def test_lines_are_split_and_broken_bytes_shown() -> None:
    assert await _split(b"one\r\ntw", b"o\n\n\xff\nlast") == ["one", "two", "", "\ufffd", "last"]
    assert await _split() == []


async def test_a_line_without_end_does_not_stall_reading() -> None:
    lines = await _split(b"x" * 200_000, b"\nnext\n")
    assert "".join(lines[:-1]) == "x" * 200_000
    assert lines[-1] == "next"


def test_lines_carry_their_process_and_keep_their_brackets() -> None:
    console = Console(file=io.StringIO(), highlight=False, width=20)
    output = PrefixedOutput(["prefill-0", "decode-0"], console)
    output.line("decode-0", "[info] a line that is longer than the terminal is wide")
    output.line("prefill-0", "\x1b[31mred\x1b[0m")
    output.say("ready")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == (
        "decode-0  | [info] a line that is longer than the terminal is wide\n"
        "prefill-0 | red\n"
        "baton     | ready\n"
    )  # fmt: skip


def test_a_child_sees_one_value_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("baton_decode__port", "1")
    monkeypatch.setenv("BATON_DECODE__METRICS_PORT", "2")
    environment = _environment({"BATON_DECODE__PORT": "3"})
    assert "baton_decode__port" not in environment
    assert environment["BATON_DECODE__PORT"] == "3"
    assert environment["BATON_DECODE__METRICS_PORT"] == "2"
    assert environment["PATH"] == os.environ["PATH"]
