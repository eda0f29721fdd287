"""Prompts of vectors that say what token ids say, and a record of the logits that services in this process compute."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from baton_client import Embeddings
from shared.engine.runner import Runner
from shared.engine.step import BeforeCompute, StepRow


@dataclass
class Recording:
    """Of requests that run one after another.

    Attributes:
        logits: by the number of tokens before the token that they are for.
        chunks: (first token, tokens, vectors) of each row, in the order that they ran in.
    """

    logits: dict[int, torch.Tensor] = field(default_factory=dict)
    chunks: list[tuple[int, int, int]] = field(default_factory=list)

    def take(self) -> "Recording":
        """What was recorded since the last time."""
        taken = Recording(self.logits, self.chunks)
        self.logits, self.chunks = {}, []
        return taken


@contextmanager
def recorded() -> Iterator[Recording]:
    """Records every step that any runner runs."""
    recording, run = Recording(), Runner.run

    def recording_run(self: Runner, walk: str, rows: Sequence[StepRow], before_compute: BeforeCompute) -> torch.Tensor:
        logits = run(self, walk, rows, before_compute)
        for row in rows:
            num_vectors = 0 if row.input_embeddings is None else len(row.input_embeddings)
            recording.chunks.append((row.start, len(row.token_ids), num_vectors))
        for row, values in zip([row for row in rows if row.wants_logits], logits, strict=True):
            recording.logits[row.kv_len] = values.clone()
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "run", recording_run)
        yield recording


def table_of(model: Path) -> torch.Tensor:
    """A model's own embeddings, float32 [vocab_size, hidden_size]."""
    with safe_open(model / "model.safetensors", "pt") as file:
        table: torch.Tensor = file.get_tensor("model.embed_tokens.weight")
    return table.float()


def embedded(token_ids: Sequence[int], table: torch.Tensor, dtype: str = "float32") -> Embeddings:
    """The vectors that the model itself looks up for these ids, where `dtype` holds them."""
    rows = table[torch.tensor(token_ids)]
    if dtype == "float32":
        return Embeddings.from_array(rows.numpy())
    data = rows.bfloat16().contiguous().view(torch.int16).numpy().tobytes()
    return Embeddings(data, len(token_ids), dtype)
