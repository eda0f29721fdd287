"""The bare engine as a process of its own: answers one JSON line for each that it reads, until its input ends.

Started by `benchmarks.engine_process`, which describes the requests. It computes only while it is asked something, so
that services can be measured in between.
"""

import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import structlog
import torch

from benchmarks.ceilings import measure_ceilings
from benchmarks.engine import BLOCK_SIZE, Bench, facts_of
from benchmarks.timing import seconds_of
from cli.layout import ConfigFiles
from shared.config.load import load_serving
from shared.config.serving import ServingConfig
from shared.engine.models.registry import resolve_model
from shared.engine.runner import LoadedModel, load_model

_NUM_COPIES = 7


class Worker:
    """Answers requests about one model.

    Args:
        model: what is measured.
        shapes: the (rows, tokens) that will be asked for.
    """

    def __init__(self, model: LoadedModel, shapes: list[tuple[int, int]]) -> None:
        self._model = model
        self._bench = Bench(model, shapes)
        self._answers: Mapping[str, Callable[..., object]] = {
            "rate": self.rate,
            "ceilings": self.ceilings,
            "copy": self.copy,
            "model": self.facts,
        }

    def answer(self, request: Mapping[str, Any]) -> object:
        """Calls what `request["ask"]` names with the other keys."""
        return self._answers[request["ask"]](**{key: value for key, value in request.items() if key != "ask"})

    def rate(self, threads: int, walk: str, rows: int, length: int, repeats: int, start: int) -> float:
        """Tokens a second; see `Bench.tokens_a_second`."""
        torch.set_num_threads(threads)
        return self._bench.tokens_a_second(walk, rows, length, repeats, start)

    def ceilings(self, threads: int) -> dict[str, float]:
        """See `measure_ceilings`."""
        return asdict(measure_ceilings(threads))

    def copy(self, tokens: int) -> float:
        """Median seconds of copying the KV of so many tokens between two buffers that are there already."""
        num_blocks = -(-tokens // BLOCK_SIZE)
        num_bytes = num_blocks * self._model.kv_layout(BLOCK_SIZE).block_bytes
        source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
        return seconds_of(lambda: np.copyto(target, source), _NUM_COPIES)

    def facts(self) -> dict[str, object]:
        """What bounds are computed from."""
        return asdict(facts_of(self._model))


def _load(serving: ServingConfig) -> LoadedModel:
    """The model, loaded on a thread as the services do.

    The thread decides which part of memory the allocator takes, and that has made a fifth of a decode step's time.
    """
    return load_model(
        resolve_model(serving.model),
        serving.dtype,
        serving.max_model_len,
        block_size=BLOCK_SIZE,
        kernels=serving.kernels,
        weights=serving.weights,
    )


def main() -> int:
    """Serves until the input ends; returns the exit code."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    shapes = [(rows, length) for rows, length in json.loads(sys.argv[1])]
    with ThreadPoolExecutor(1) as loader:
        model = loader.submit(_load, load_serving(ConfigFiles().serving)).result()
    worker = Worker(model, shapes)
    with suppress(BrokenPipeError):  # who asked does not wait for the answer any more
        for line in sys.stdin:
            sys.stdout.write(json.dumps(worker.answer(json.loads(line))) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
