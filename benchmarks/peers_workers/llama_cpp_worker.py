"""llama.cpp through the bindings of llama-cpp-python, on the level of its C interface: batches of several sequences."""

import importlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.peers_workers.loop import serve

_PAD = 64
"""Room that a sequence gets beyond what is asked for."""
_MAX_BATCH = 2048


class LlamaCpp:
    """A model from a GGUF file; dtype is the file's."""

    def __init__(self, path: str, threads: int, dtype: str) -> None:
        self._lib: Any = importlib.import_module("llama_cpp")
        self._threads = threads
        self._on_log = self._lib.llama_log_callback(_ignore)  # kept: the library holds no reference to it
        self._lib.llama_log_set(self._on_log, None)
        self._lib.llama_backend_init()
        self._model = self._lib.llama_model_load_from_file(path.encode(), self._lib.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp could not load {path}")
        self._vocab_size = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(self._model))
        self._context: Any = None
        self.version = f"llama-cpp-python {self._lib.__version__}, {dtype} file"

    def prefill(self, num_rows: int, length: int) -> Callable[[], object]:
        """See `loop.Peer`."""
        self._open(num_rows, length)

        def run() -> None:
            self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), False)
            self._decode(num_rows, range(length))

        return run

    def decode(self, num_rows: int, context: int) -> Callable[[], object]:
        """See `loop.Peer`; what a step adds to the cache is taken off again."""
        self._open(num_rows, context)
        for row in range(num_rows):
            self._decode(1, range(context), first_row=row)

        def run() -> None:
            self._decode(num_rows, range(context, context + 1))
            self._lib.llama_memory_seq_rm(self._lib.llama_get_memory(self._context), -1, context, -1)

        return run

    def _open(self, num_rows: int, length: int) -> None:
        """A context with room for just these sequences, which is what suits llama.cpp best."""
        if self._context is not None:
            self._lib.llama_free(self._context)
        params = self._lib.llama_context_default_params()
        params.n_seq_max = num_rows
        params.n_ctx = num_rows * (length + _PAD)
        params.n_batch = _MAX_BATCH
        params.n_threads = params.n_threads_batch = self._threads
        self._context = self._lib.llama_init_from_model(self._model, params)

    def _decode(self, num_rows: int, positions: range, first_row: int = 0) -> None:
        """Computes tokens at these positions of so many sequences, with logits of the last ones."""
        batch = self._lib.llama_batch_init(num_rows * len(positions), 0, 1)
        try:
            for index, (row, position) in enumerate(_grid(first_row, num_rows, positions)):
                batch.token[index] = random.randrange(self._vocab_size)  # noqa: S311 (nothing secret)
                batch.pos[index] = position
                batch.n_seq_id[index] = 1
                batch.seq_id[index][0] = row
                batch.logits[index] = position == positions[-1]
            batch.n_tokens = num_rows * len(positions)
            if status := self._lib.llama_decode(self._context, batch):
                raise SystemExit(f"llama_decode failed with {status}")
            self._lib.llama_synchronize(self._context)
        finally:
            self._lib.llama_batch_free(batch)


def _ignore(_level: int, _text: bytes, _data: object) -> None:
    """Of the library's log, which is long."""


def _grid(first_row: int, num_rows: int, positions: range) -> Iterator[tuple[int, int]]:
    return ((row, position) for row in range(first_row, first_row + num_rows) for position in positions)


if __name__ == "__main__":
    serve(LlamaCpp)
