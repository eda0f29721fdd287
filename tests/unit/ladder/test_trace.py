"""Traces of prompt lengths: which files are read, what of them, and what is said of bad ones."""

import io
import sys
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.ladder.trace import Trace, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.99,396,109\n"
MOONCAKE = '{"timestamp": 0, "input_length": 374, "output_length": 5, "hash_ids": [0]}\n{"input_length": 396}\n'


def _bad(line: int, shown: str) -> str:
    return f"line {line}: found {shown}; needs a number of tokens from 0 to 1000000000"


# name: (file, content, column asked for, column read)
READABLE = {
    "Azure": ("a.csv", AZURE, None, "ContextTokens"),
    "Azure, column asked for": ("a.csv", AZURE.replace("GeneratedTokens", "x"), "ContextTokens", "ContextTokens"),
    "Mooncake": ("a.jsonl", MOONCAKE, None, "input_length"),
    "Mooncake of another name": ("a.txt", MOONCAKE, None, "input_length"),
    "Mooncake, column asked for": ("a.jsonl", MOONCAKE, "input_length", "input_length"),
    "numbers": ("a.txt", "374\n396\n", None, None),
    "numbers without a last line end": ("a.csv", "374\n396", None, None),
    "numbers, line ends of Windows": ("a.csv", "374\r\n396\r\n", None, None),
    "numbers with a byte order mark": ("a.csv", "\ufeff374\n396\n", None, None),
    "numbers with blank lines": ("a.csv", "\n374\n\n396\n\n", None, None),
    "numbers with spaces": ("a.csv", " 374\n396 \n", None, None),
    "numbers written as fractions": ("a.csv", "374.0\n396.\n", None, None),
    "numbers with zeros in front": ("a.csv", "0374\n00000000000000000396\n", None, None),
    "numbers as JSON Lines": ("a.jsonl", "374\n396\n", None, None),
    "one column of any name": ("a.csv", "prompt size\n374\n396\n", None, "prompt size"),
    "one column, asked for": ("a.csv", "prompt size\n374\n396\n", "prompt size", "prompt size"),
    "one key of any name": ("a.jsonl", '{"n": 374}\n\n{"n": 396}\n', None, "n"),
    "other columns": ("a.csv", "a, b \n1,374\n2,396\n", "b", "b"),
    "tabs": ("a.tsv", "a\tprompt_tokens\n1\t374\n2\t396\n", None, "prompt_tokens"),
    "semicolons": ("a.csv", "a;prompt_tokens\n1;374\n2;396\n", None, "prompt_tokens"),
    "quotes": ("a.csv", 'a,"length"\n"x, y\nz","374"\n"","396"\n', None, "length"),
    "the better known of two columns": ("a.csv", "length,ContextTokens\n1,374\n1,396\n", None, "ContextTokens"),
    "texts and fractions in JSON": ("a.jsonl", '{"n": "374"}\n{"n": 396.0}\n', None, "n"),
    "indented JSON Lines": ("a.log", '  {"n": 374}\n {"n": 396}\n', None, "n"),
}


@pytest.mark.parametrize("name", READABLE)
def test_two_prompts_are_read(name: str, tmp_path: Path) -> None:
    file_name, content, asked, column = READABLE[name]
    file = tmp_path / file_name
    file.write_text(content, newline="")
    assert read_trace(file, asked) == Trace(column, {374: 1, 396: 1}, num_empty_rows=0)


MALFORMED = {
    "empty": ("a.csv", b"", "found an empty file; needs a prompt length a line"),
    "blank": ("a.csv", b"\n  \n", "found an empty file; needs a prompt length a line"),
    "header alone": ("a.csv", b"a,ContextTokens\n", "found no rows; needs at least one prompt"),
    "empty prompts alone": ("a.csv", b"0\n0\n", "found 2 rows of 0 tokens and no others; needs at least one prompt"),
    "word": ("a.csv", b"1\n2\nmany\n", _bad(3, '"many"')),
    "negative": ("a.csv", b"-1\n2\n", _bad(1, '"-1"')),
    "fraction": ("a.csv", b"1\n1.5\n", _bad(2, '"1.5"')),
    "exponent": ("a.csv", b"1\n1e3\n", _bad(2, '"1e3"')),
    "underscore": ("a.csv", b"1\n1_000\n", _bad(2, '"1_000"')),
    "digits of another script": ("a.csv", "1\n٣\n".encode(), _bad(2, '"\\u0663"')),
    "no number": ("a.csv", b"nan\n", _bad(1, '"nan"')),
    "too long": ("a.csv", b"1000000000\n1000000001\n", _bad(2, '"1000000001"')),
    "far too long": ("a.csv", b"1\n" + b"9" * 9000, _bad(2, '"' + "9" * 96 + "...")),
    "no value": ("a.csv", b"a,length\n1,2\n3,\n", _bad(3, '""')),
    "bad value after a field of two lines": ("a.csv", b'a,length\n"\n",2\n1,x\n', _bad(4, '"x"')),
    "short row": ("a.csv", b"a,length\n1,2\n3\n", "line 3: found 1 values; needs length as number 2"),
    "no known column": (
        "a.csv",
        b"a,b\n1,2\n",
        (
            'line 1: found the columns "a, b"; needs ContextTokens or input_length or prompt_tokens or '
            "num_prompt_tokens or input_tokens or length; --column names another"
        ),
    ),
    "no CSV": (
        "a.csv",
        b"a,length\r1,2\r",
        "line 1: found what is no CSV (new-line character seen in unquoted field); needs a row of values",
    ),
    "no UTF-8": ("a.csv", b"1\n2\n\xff\xfe\n", "line 3: found bytes that are no UTF-8; needs text"),
    "gzip": (
        "a.csv.gz",
        b"\x1f\x8b\x08\x00\x00",
        "line 1: found a gzip file; needs text, as from `gunzip -c FILE | baton ladder suggest --trace - …`",
    ),
    "zeros": ("a.csv", b"\x00\n" * 50, _bad(2, '"\\u0000"')),
    "no JSON": (
        "a.jsonl",
        b'{"n": 1}\n{"n": 1\n',
        "line 2: found what is no JSON; needs one object a line, as of `jq -c '.[]'`",
    ),
    "JSON over many lines": (
        "a.json",
        b'{\n"n": 1}\n',
        "line 1: found what is no JSON; needs one object a line, as of `jq -c '.[]'`",
    ),
    "a JSON array over many lines": (
        "a.json",
        b'[\n{"n": 1}\n]\n',
        "line 1: found the beginning of a JSON array; needs one object a line, as of `jq -c '.[]'`",
    ),
    "a JSON array": ("a.json", b"[1, 2]\n", _bad(1, "[1, 2]")),
    "deep JSON": (
        "a.jsonl",
        b"[" * 100_000,
        "line 1: found the beginning of a JSON array; needs one object a line, as of `jq -c '.[]'`",
    ),
    "bool": ("a.jsonl", b'{"n": 1}\n{"n": true}\n', _bad(2, "true")),
    "null": ("a.jsonl", b'{"n": null}\n', _bad(1, "null")),
    "list": ("a.jsonl", b'{"n": [1]}\n', _bad(1, "[1]")),
    "missing key": (
        "a.jsonl",
        b'{"length": 1, "b": 2}\n{"b": 2}\n',
        'line 2: found {"b": 2}; needs an object with the key length',
    ),
    "number among objects": ("a.jsonl", b'{"n": 1}\n7\n', "line 2: found 7; needs an object with the key n"),
    "object among numbers": ("a.jsonl", b'7\n{"n": 1}\n', _bad(2, '{"n": 1}')),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_trace_is_refused_with_the_line(name: str, tmp_path: Path) -> None:
    file_name, content, reason = MALFORMED[name]
    file = tmp_path / file_name
    file.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_trace(file)
    assert refused.value.message == f"{file}: {reason}"


@pytest.mark.parametrize(
    ("file_name", "content", "reason"),
    [
        ("a.csv", AZURE, 'found the columns "TIMESTAMP, ContextTokens, GeneratedTokens"; needs tokens'),
        ("a.csv", "12\n", 'found the columns "12"; needs tokens'),
        ("a.jsonl", MOONCAKE, 'found the columns "timestamp, input_length, output_length, hash_ids"; needs tokens'),
        ("a.jsonl", "12\n", "found 12; needs an object with the key tokens"),
    ],
)
def test_a_column_that_is_not_there_is_refused(file_name: str, content: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / file_name
    file.write_text(content)
    with pytest.raises(ConfigError) as refused:
        read_trace(file, "tokens")
    assert refused.value.message == f"{file}: line 1: {reason}"


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.csv: cannot be read \(No such file or directory\)"):
        read_trace(tmp_path / "missing.csv")
    with pytest.raises(ConfigError, match=r": cannot be read \(Is a directory\)"):
        read_trace(tmp_path)


def test_empty_prompts_are_counted_apart(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("length\n0\n7\n0\n7\n9\n00\n")
    trace = read_trace(file)
    assert trace == Trace("length", {7: 2, 9: 1}, num_empty_rows=3)
    assert (trace.num_prompts, trace.longest) == (3, 9)


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"7\n9\n7\n")))
    assert read_trace(Path("-")) == Trace(None, {7: 2, 9: 1}, num_empty_rows=0)


def test_standard_input_that_is_empty_or_closed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(ConfigError, match=r"^standard input: found an empty file; needs"):
        read_trace(Path("-"))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigError, match=r"^standard input: found it closed; needs a prompt length a line"):
        read_trace(Path("-"))


def test_a_line_without_end_is_refused_before_it_fills_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.ladder.trace._MAX_LINE_BYTES", 8)
    file = tmp_path / "a.csv"
    file.write_text("1\n12345678901\n")
    with pytest.raises(ConfigError, match="line 2: found 8 bytes and no end; needs one prompt a line"):
        read_trace(file)


def test_progress_is_told_now_and_then(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("12\n" * 200_000)
    told: list[int] = []
    assert read_trace(file, on_progress=told.append).prompts == {12: 200_000}
    assert told == [3 * 65_536, 3 * 131_072, 3 * 196_608]
