"""Prompt lengths out of a trace: CSV or JSON Lines, one prompt a row, read once and kept as counts.

A file whose first line begins with `{`, or whose name ends in .jsonl or .ndjson, is JSON Lines: on each line an object,
or a length alone. All others are CSV, split at commas, tabs or semicolons, with a header; where there is one column and
the first line is a number, there is no header.
"""

import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from shared.errors import ConfigError

KNOWN_COLUMNS = ("ContextTokens", "input_length", "prompt_tokens", "num_prompt_tokens", "input_tokens", "length")
"""Columns that hold prompt lengths, in order of preference: Azure's traces have the first, Mooncake's the second."""
MAX_LENGTH = 10**9
"""Longest prompt that is believed, in tokens; a time stamp is longer."""
STANDARD_INPUT = Path("-")

_GZIP = b"\x1f\x8b"
_COMPRESSED = "found a gzip file; needs text, as from `gunzip -c FILE | baton ladder suggest --trace - …`"
_JSON_SUFFIXES = (".jsonl", ".ndjson")
_MAX_LINE_BYTES = 2**24
_LINES_A_REPORT = 65_536
_WHOLE_NUMBER = re.compile(r"\s*([0-9]+)(\.0*)?\s*")

OnProgress = Callable[[int], None]
"""Is told now and then how many bytes have been read."""


@dataclass(frozen=True)
class Trace:
    """The prompts of a trace.

    Attributes:
        column: where their lengths stood; None where there is one column and it has no name.
        prompts: length in tokens, ≥ 1 → how many prompts have it, ≥ 1; not empty.
        num_empty_rows: rows that say 0 tokens; they are not among the prompts, as they make no step.
    """

    column: str | None
    prompts: Mapping[int, int]
    num_empty_rows: int

    @property
    def num_prompts(self) -> int:
        """Prompts of at least one token."""
        return sum(self.prompts.values())

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(self.prompts)


def read_trace(path: Path, column: str | None = None, on_progress: OnProgress | None = None) -> Trace:
    """Reads a trace; `-` is standard input.

    Args:
        path: the file.
        column: where the lengths stand; None for the first of `KNOWN_COLUMNS` that is there, or the only one.
        on_progress: is told how far it is.

    Raises:
        ConfigError: the file cannot be read, has no such column, or holds something else than lengths; the message has
            the number of the line.
    """
    source = source_name(path)
    try:
        with ExitStack() as stack:
            lines = _Lines(_opened(path, stack), on_progress)
            is_json = path.suffix.lower() in _JSON_SUFFIXES or lines.first.lstrip().startswith(("{", "["))
            column, texts = _json_column(lines, column) if is_json else _csv_column(lines, column)
            return _counted(column, texts, lines)
    except _UnreadableError as error:
        place = f"line {error.line}: " if error.line else ""
        raise ConfigError(f"{source}: {place}{error}", metadata={"file": source}) from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read ({error.strerror})", metadata={"file": source}) from error


def source_name(path: Path) -> str:
    """What a trace is called in messages."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def _opened(path: Path, stack: ExitStack) -> BinaryIO:
    if path != STANDARD_INPUT:
        return stack.enter_context(path.open("rb"))
    if sys.stdin is None:
        raise _UnreadableError("found it closed; needs a prompt length a line")
    return sys.stdin.buffer


class _UnreadableError(Exception):
    """A file, or one line of it, does not hold prompt lengths; the text is what was found and what is needed."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.line = line


class _Lines:
    """The lines of a file, decoded one by one, so that a bad one is known by its number; blank ones at the top go."""

    def __init__(self, file: BinaryIO, on_progress: OnProgress | None) -> None:
        self.number = 0
        """Of the line given last; the first of the file is 1."""
        self._file = file
        self._on_progress = on_progress
        self._num_bytes = 0
        self.first = next((line for line in self._rest() if line.strip()), "")
        if not self.first:
            raise _UnreadableError("found an empty file; needs a prompt length a line")

    def __iter__(self) -> Iterator[str]:
        return chain([self.first], self._rest())

    def refuse(self, reason: str) -> _UnreadableError:
        """The error for the line given last."""
        return _UnreadableError(reason, self.number)

    def _rest(self) -> Iterator[str]:
        while line := self._file.readline(_MAX_LINE_BYTES):
            self.number += 1
            self._num_bytes += len(line)
            if len(line) == _MAX_LINE_BYTES:
                raise self.refuse(f"found {_MAX_LINE_BYTES} bytes and no end; needs one prompt a line")
            if self._on_progress is not None and self.number % _LINES_A_REPORT == 0:
                self._on_progress(self._num_bytes)
            try:
                text = line.decode("utf-8-sig" if self.number == 1 else "utf-8")
            except UnicodeDecodeError:
                is_gzip = line.startswith(_GZIP)
                raise self.refuse(_COMPRESSED if is_gzip else "found bytes that are no UTF-8; needs text") from None
            yield text


def _counted(column: str | None, texts: Iterable[str], lines: _Lines) -> Trace:
    """Counts equal texts; each is looked at where it is seen first."""
    counts: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for text in texts:
        if text in counts:
            counts[text] += 1
        else:
            lengths[text] = _length(text, lines)
            counts[text] = 1
    prompts: Counter[int] = Counter()
    for text, count in counts.items():
        prompts[lengths[text]] += count
    num_empty_rows = prompts.pop(0, 0)
    if not prompts:
        found = f"{num_empty_rows} rows of 0 tokens and no others" if num_empty_rows else "no rows"
        raise _UnreadableError(f"found {found}; needs at least one prompt")
    return Trace(column, prompts, num_empty_rows)


def _length(text: str, lines: _Lines) -> int:
    match = _WHOLE_NUMBER.fullmatch(text)
    digits = match[1].lstrip("0") if match else None
    if digits is None or len(digits) > len(str(MAX_LENGTH)) or int(digits or 0) > MAX_LENGTH:
        raise _no_length(text, lines)
    return int(digits or 0)


def _no_length(value: object, lines: _Lines) -> _UnreadableError:
    return lines.refuse(f"found {_shown(value)}; needs a number of tokens from 0 to {MAX_LENGTH}")


def _csv_column(lines: _Lines, column: str | None) -> tuple[str | None, Iterator[str]]:
    """The name of a CSV file's column of lengths, and its cells."""
    delimiter = max(",\t;", key=lines.first.count)
    rows = _csv_rows(lines, delimiter)
    first = next(rows)
    if column is None and len(first) == 1:
        has_header = not _is_number(first[0])
        cells = (row[0] for row in (rows if has_header else chain([first], rows)))
        return (first[0].strip() if has_header else None), cells
    names = [name.strip() for name in first]
    column = _chosen(names, column, lines)
    return column, _cells(rows, names.index(column), column, lines)


def _csv_rows(lines: _Lines, delimiter: str) -> Iterator[list[str]]:
    try:
        for row in csv.reader(lines, delimiter=delimiter):
            if row:
                yield row
    except csv.Error as error:
        reason = str(error).partition(" - ")[0]  # what follows is advice to programmers
        raise lines.refuse(f"found what is no CSV ({reason}); needs a row of values") from None


def _cells(rows: Iterable[list[str]], place: int, column: str, lines: _Lines) -> Iterator[str]:
    for row in rows:
        if place >= len(row):
            raise lines.refuse(f"found {len(row)} values; needs {column} as number {place + 1}")
        yield row[place]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _json_column(lines: _Lines, column: str | None) -> tuple[str | None, Iterator[str]]:
    """The key of the lengths of a JSON Lines file, and its values as texts."""
    rows = (_json_row(line, lines) for line in lines if line.strip())
    first = next(rows)
    if isinstance(first, dict):
        column = _chosen(list(first), column, lines)
    elif column is not None:
        raise lines.refuse(f"found {_shown(first)}; needs an object with the key {column}")
    return column, (_value(row, column, lines) for row in chain([first], rows))


def _json_row(line: str, lines: _Lines) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        found = "the beginning of a JSON array" if line.lstrip().startswith("[") else "what is no JSON"
        raise lines.refuse(f"found {found}; needs one object a line, as of `jq -c '.[]'`") from None


def _value(row: object, column: str | None, lines: _Lines) -> str:
    if column is None:
        value = row
    elif isinstance(row, dict) and column in row:
        value = row[column]
    else:
        raise lines.refuse(f"found {_shown(row)}; needs an object with the key {column}")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _no_length(value, lines)
    return value if isinstance(value, str) else json.dumps(value)


def _chosen(names: list[str], column: str | None, lines: _Lines) -> str:
    """The column to read."""
    if column is None and len(names) == 1:
        return names[0]
    wanted = KNOWN_COLUMNS if column is None else (column,)
    found = next((name for name in wanted if name in names), None)
    if found is None:
        hint = "; --column names another" if column is None else ""
        raise lines.refuse(f"found the columns {_shown(', '.join(names))}; needs {' or '.join(wanted)}{hint}")
    return found


def _shown(value: object) -> str:
    """A value as it stands in the file, in printable characters, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
