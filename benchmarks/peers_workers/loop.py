"""The part that all workers share. Workers run in another environment: nothing here needs Baton, or PyPI.

A worker is started as a program with the model's path, the number of threads and the dtype. It loads the model, writes
a line of JSON about itself, and then answers each line that it reads: tokens a second of prefill or decode steps.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TextIO

from benchmarks.timing import seconds_of


class Peer(Protocol):
    """An engine that is compared with Baton's."""

    version: str
    """Its own, and what else is worth telling."""

    def prefill(self, num_rows: int, length: int) -> Callable[[], object]:
        """What computes so many new prompts of `length` tokens, logits of the last ones included, when it is called."""

    def decode(self, num_rows: int, context: int) -> Callable[[], object]:
        """What generates one token for each of so many rows with `context` tokens when it is called."""


def serve(make: Callable[[str, int, str], Peer]) -> None:
    """Runs a worker: `make` gets path, threads and dtype.

    Libraries write to standard output what they like: it goes to standard error, and answers where output went before.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    path, threads, dtype = sys.argv[1:4]
    peer = make(path, int(threads), dtype)
    _write(answers, {"version": peer.version})
    with suppress(BrokenPipeError):  # who asked does not wait for the answer any more
        for line in sys.stdin:
            request = json.loads(line)
            prepare = peer.decode if request["walk"] == "decode" else peer.prefill
            rows, length = request["rows"], request["length"]
            seconds = seconds_of(prepare(rows, length), request["repeats"])
            _write(answers, rows * (1 if request["walk"] == "decode" else length) / seconds)


def _write(answers: TextIO, value: object) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
