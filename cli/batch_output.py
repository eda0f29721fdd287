"""The output file of a batch: a record for each line of the input, in its order.

    {"line": 3, "source": "9f2c…", "request_id": "a", "response": {…}}     a baton.v1.GenerateResponse
    {"line": 4, "source": "07d1…", "request_id": "b", "error": {"reason": …, "message": …, "metadata": {…}}}

`source` is a digest of the input line and of what else decides the answer. Answers that are there before an earlier
line's lie in a second file, `<output>.early`, until it is their turn, so that an interruption loses none.

A run goes on behind the answers that an earlier one left, once it has seen that they answer the same lines by the same
model. Errors are no answers: their lines are asked again, as they may have been mended, or the config.
"""

import fcntl
import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from cli.batch_input import InputLine
from shared.errors import ConfigError


@dataclass(frozen=True)
class Source:
    """What an answer depends on beside its line."""

    model_fingerprint: str
    dtype: str
    weights: str
    kernels: str
    max_model_len: int | None
    default_max_tokens: int

    def digest(self, line: InputLine) -> str:
        """16 hex digits for one line."""
        return hashlib.sha256(repr(self).encode() + b"\n" + (line.data or b"")).hexdigest()[:16]


class BatchOutput:
    """Takes records in any order; a context manager. Holds a lock, so that two runs do not write one file at once.

    Args:
        path: made if absent; its directory must be there.
        source: see `Source`.
        overwrite: whether to drop what is there.

    Attributes:
        num_kept: lines passed so far whose answers are of an earlier run.

    Raises:
        ConfigError: the file cannot be written, or another run writes it.
    """

    def __init__(self, path: Path, source: Source, *, overwrite: bool) -> None:
        self.num_kept = 0
        self._path = path
        self._source = source
        self._file = _open_locked(path)
        try:
            self._early_file = _open_locked(self._early_path)
        except ConfigError:
            self._file.close()
            raise
        self._early: dict[int, bytes] = {}
        """Records that are not in the file yet, by line."""
        self._turns: deque[int] = deque()
        """Lines passed so far that have no record in the file, in order."""
        if overwrite:
            self._file.truncate(0)
            self._early_file.truncate(0)

    def unanswered(self, lines: Iterator[InputLine]) -> Iterator[InputLine]:
        """The lines to ask; those that have an answer already are passed over.

        Raises:
            ConfigError: a record answers another line, or this is no output of a batch; nothing has been changed then.
        """
        first = self._pass_answers(lines)
        self._set_aside(self._file.tell())
        for line in () if first is None else chain([first], lines):
            self._turns.append(line.number)
            if self._is_answered(line):
                self.num_kept += 1
                self._write()
            else:
                self._early.pop(line.number, None)
                yield line

    def put(self, line: InputLine, request_id: str, answer: dict[str, Any]) -> None:
        """Writes a record, or keeps it until those before it are there.

        Args:
            line: what is answered.
            request_id: as in the request.
            answer: `response` or `error`.
        """
        record = {"line": line.number, "source": self._source.digest(line), "request_id": request_id, **answer}
        data = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        self._early[line.number] = data
        if self._turns[0] == line.number:
            self._write()
        else:
            self._early_file.write(data)
            self._early_file.flush()

    def _pass_answers(self, lines: Iterator[InputLine]) -> InputLine | None:
        """Goes to the first record that is no answer, or to the end; returns the line there, if there is one."""
        self._file.seek(0)
        while True:
            start = self._file.tell()
            data = self._file.readline()
            line = next(lines, None)
            record = self._record(data, self._path) if data.endswith(b"\n") else None
            if record is None or "error" in record:
                if record is None and data and not self._is_beginning(data, line):
                    raise _not_ours(self._path)
                self._file.seek(start)
                return line
            if line is None or not self._answers(record, line):
                raise ConfigError(
                    f"{self._path}: record {self.num_kept + 1} does not answer "
                    f"{'any line' if line is None else f'line {line.number}'} of this input with this model and "
                    "config; needs the run that it was made by, another file, or --overwrite"
                )
            self.num_kept += 1

    def _set_aside(self, end: int) -> None:
        """Moves the answers behind `end` to the second file, beside those that are there."""
        behind = [data for data in self._complete(self._file, end) if "error" not in self._record(data, self._path)]
        self._early_file.writelines(behind)
        self._early_file.flush()
        self._early = {
            self._record(data, self._early_path)["line"]: data for data in self._complete(self._early_file, 0)
        }
        self._file.truncate(end)
        self._file.seek(end)

    def _complete(self, file: BinaryIO, start: int) -> Iterator[bytes]:
        """The lines of a file, without one that an interruption left half written."""
        file.seek(start)
        return (data for data in file if data.endswith(b"\n"))

    def _is_answered(self, line: InputLine) -> bool:
        data = self._early.get(line.number)
        return data is not None and self._answers(json.loads(data), line)

    def _answers(self, record: dict[str, Any], line: InputLine) -> bool:
        return (record["line"], record["source"]) == (line.number, self._source.digest(line))

    def _is_beginning(self, data: bytes, line: InputLine | None) -> bool:
        """Whether this is what an interruption left of a line's record."""
        if line is None:
            return False
        beginning = json.dumps({"line": line.number, "source": self._source.digest(line)}).encode()[:-1]
        return data.startswith(beginning) or beginning.startswith(data)

    def _write(self) -> None:
        """Writes the records whose turn it is."""
        while self._turns and (data := self._early.pop(self._turns[0], None)) is not None:
            self._file.write(data)
            self._turns.popleft()
        self._file.flush()
        if not self._early:
            self._early_file.truncate(0)

    def _record(self, data: bytes, path: Path) -> dict[str, Any]:
        try:
            record = json.loads(data)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not {"line", "source", "request_id"} <= record.keys():
            raise _not_ours(path)
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._early_file.seek(0, os.SEEK_END) == 0:
            self._early_path.unlink(missing_ok=True)
        self._early_file.close()
        self._file.close()

    @property
    def _early_path(self) -> Path:
        return self._path.with_name(f"{self._path.name}.early")


def _not_ours(path: Path) -> ConfigError:
    return ConfigError(f"{path}: holds something else than records of a batch; needs another file, or --overwrite")


def _open_locked(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ConfigError(f"{path}: is no regular file; a run could not go on from it")
    try:
        file = path.open("ab+")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(f"{path}: another run is writing it") from error
    return file
