"""transformers, eager, with its own attention (SDPA) and a dynamic cache."""

import importlib
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.peers_workers.loop import serve


class Transformers:
    """A causal model from a directory in Hugging Face's format."""

    def __init__(self, path: str, threads: int, dtype: str) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        transformers: Any = importlib.import_module("transformers")
        self._model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"

    def prefill(self, num_rows: int, length: int) -> Callable[[], object]:
        """See `loop.Peer`."""
        token_ids = self._token_ids(num_rows, length)
        return lambda: self._model(token_ids, use_cache=True, logits_to_keep=1).logits.argmax(-1)

    def decode(self, num_rows: int, context: int) -> Callable[[], object]:
        """See `loop.Peer`; what a step adds to the cache is taken off again."""
        cache = self._model(self._token_ids(num_rows, context), use_cache=True, logits_to_keep=1).past_key_values
        token_ids = self._token_ids(num_rows, 1)

        def step() -> object:
            chosen = self._model(token_ids, past_key_values=cache, use_cache=True).logits.argmax(-1)
            cache.crop(-1)
            return chosen

        return step

    def _token_ids(self, num_rows: int, length: int) -> torch.Tensor:
        return torch.randint(self._model.config.vocab_size, (num_rows, length))


if __name__ == "__main__":
    serve(Transformers)
