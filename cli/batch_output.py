"""The output file of a batch: a record for each line of the input, in its order, written as soon as that order allows.

    {"line": 3, "source": "9f2c…", "request_id": "a", "response": {…}}     a baton.v1.GenerateResponse
    {"line": 4, "source": "07d1…", "request_id": "b", "error": {"reason": …, "message": …, "metadata": {…}}}

`source` is a digest of the input line and of what else decides the answer. A run goes on behind the records that an
earlier one left, once it has seen that they are the answers to the same lines by the same model.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cli.batch_input import InputLine
from shared.errors import ConfigError


@dataclass(frozen=True)
class Source:
    """What an answer depends on beside its line."""

    model_fingerprint: str
    dtype: str
    max_model_len: int | None
    default_max_tokens: int

    def digest(self, line: InputLine) -> str:
        """16 hex digits for one line."""
        return hashlib.sha256(repr(self).encode() + b"\n" + (line.data or b"")).hexdigest()[:16]


class BatchOutput:
    """Appends records; a context manager. Holds a lock on the file, so that two runs do not write it at once.

    Args:
        path: made if absent; its directory must be there.
        source: see `Source`.
        overwrite: whether to drop what is there.

    Raises:
        ConfigError: the file cannot be written, or another run writes it.
    """

    def __init__(self, path: Path, source: Source, *, overwrite: bool) -> None:
        self._path = path
        self._source = source
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(f"{path}: is no regular file; a run could not go on from it")
        try:
            self._file = path.open("ab+")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ConfigError(f"{path}: another run is writing it") from error
        if overwrite:
            self._file.truncate(0)
        self._next = 0
        self._early: dict[int, bytes] = {}

    def skip_done(self, lines: Iterator[InputLine]) -> tuple[int, int]:
        """Takes the lines off that have a record, and drops a half-written last record.

        Returns:
            Lines that have one, and how many of these are errors.

        Raises:
            ConfigError: a record answers another line, or this is no output of a batch.
        """
        num_done = num_failed = 0
        self._file.seek(0)
        while data := self._file.readline():
            if not data.endswith(b"\n"):
                self._file.truncate(self._file.tell() - len(data))
                break
            record = self._record(data, num_done + 1)
            line = next(lines, None)
            if line is None or (record["line"], record["source"]) != (line.number, self._source.digest(line)):
                raise ConfigError(
                    f"{self._path}: record {num_done + 1} does not answer "
                    f"{'any line' if line is None else f'line {line.number}'} of this input with this model and "
                    "config; needs the run that it was made by, another file, or --overwrite"
                )
            num_done += 1
            num_failed += "error" in record
        self._file.seek(0, os.SEEK_END)
        return num_done, num_failed

    def put(self, place: int, line: InputLine, request_id: str, answer: dict[str, Any]) -> None:
        """Writes a record, or keeps it until those before it are there.

        Few are kept: while one request is computed, others pass it, at most as many as the rows of the batch times the
        tokens of a context.

        Args:
            place: of the line among those that `skip_done` left, from 0.
            line: what is answered.
            request_id: as in the request.
            answer: `response` or `error`.
        """
        record = {"line": line.number, "source": self._source.digest(line), "request_id": request_id, **answer}
        self._early[place] = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        while (data := self._early.pop(self._next, None)) is not None:
            self._file.write(data)
            self._next += 1
        self._file.flush()

    def _record(self, data: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(data)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not {"line", "source"} <= record.keys():
            raise ConfigError(
                f"{self._path}: line {number} is no record of a batch; needs another file, or --overwrite"
            )
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
