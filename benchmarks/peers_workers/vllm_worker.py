"""vLLM's engine in this process, step by step."""

import importlib
import itertools
import os
import random
from collections.abc import Callable
from typing import Any

from benchmarks.peers_workers.loop import serve

_MAX_TOKENS = 1024
"""More than are ever generated."""
_MAX_BATCH = 2048


class Vllm:
    """A model from a directory in Hugging Face's format."""

    def __init__(self, path: str, threads: int, dtype: str) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
        self._lib: Any = importlib.import_module("vllm")
        llm = self._lib.LLM(
            model=path,
            dtype=dtype,
            max_model_len=2 * _MAX_BATCH,
            max_num_batched_tokens=_MAX_BATCH,
            max_num_seqs=64,
            enable_prefix_caching=False,
        )
        self._engine = llm.llm_engine
        self._vocab_size = self._engine.model_config.get_vocab_size()
        self._names = map(str, itertools.count())
        self._live: list[str] = []
        self.version = f"vllm {self._lib.__version__}"

    def prefill(self, num_rows: int, length: int) -> Callable[[], object]:
        """See `loop.Peer`."""
        self._abort()

        def run() -> None:
            self._add(num_rows, length, max_tokens=1)
            while self._engine.has_unfinished_requests():
                self._engine.step()

        return run

    def decode(self, num_rows: int, context: int) -> Callable[[], object]:
        """See `loop.Peer`; the context grows by a token a step."""
        self._abort()
        started: set[str] = set()
        self._live = self._add(num_rows, context, _MAX_TOKENS)
        while len(started) < num_rows:
            started |= {output.request_id for output in self._engine.step()}
        step: Callable[[], object] = self._engine.step
        return step

    def _abort(self) -> None:
        self._engine.abort_request(self._live)
        self._live = []
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def _add(self, num_rows: int, length: int, max_tokens: int) -> list[str]:
        """Requests with new random prompts."""
        sampling = self._lib.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        names = list(itertools.islice(self._names, num_rows))
        for name in names:
            prompt = {"prompt_token_ids": [random.randrange(self._vocab_size) for _ in range(length)]}  # noqa: S311
            self._engine.add_request(name, prompt, sampling)
        return names


if __name__ == "__main__":
    serve(Vllm)
