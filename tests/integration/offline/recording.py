"""An offline engine on a real model, and every step that it runs, warm-up included."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from decode_service.offline import OfflineEngine
from decode_service.request import GenerationRequest
from shared.config.serving import ServingConfig
from shared.engine.buffers import StepBuffers
from shared.engine.compute import StepComputer
from shared.engine.runner import Runner
from shared.engine.step import BeforeCompute, StepRow
from shared.sampling.params import SamplingParams
from shared.text.stopping import StoppingParams


@dataclass(frozen=True)
class RecordedSlice:
    """A row of a step: which tokens, at absolute positions [start, kv_len)."""

    token_ids: tuple[int, ...]
    start: int
    kv_len: int


@dataclass
class Recording:
    """Steps by walk, as the runner was given them, and tokens of each dispatch, warm-up's included."""

    steps: list[tuple[str, list[StepRow]]] = field(default_factory=list)
    dispatched: list[int] = field(default_factory=list)

    def sizes(self, walk: str) -> list[list[int]]:
        """Tokens of each row of each step of a walk."""
        return [[len(row.token_ids) for row in rows] for name, rows in self.steps if name == walk]

    def slices(self, prompt: Sequence[int]) -> list[RecordedSlice]:
        """The prefill slices of one prompt, told by its blocks, in the order that they ran in."""
        rows = [row for name, rows in self.steps if name != "decode" for row in rows]
        table = next(row.block_table for row in rows if list(row.token_ids) == list(prompt[: len(row.token_ids)]))
        return [RecordedSlice(tuple(row.token_ids), row.start, row.kv_len) for row in rows if row.block_table == table]


@contextmanager
def recorded(
    monkeypatch: pytest.MonkeyPatch, serving: ServingConfig, num_kv_blocks: int = 64
) -> Iterator[tuple[OfflineEngine, Recording]]:
    """Opens the engine with recorders around its runner and what the runner computes with."""
    recording = Recording()
    run, compute = Runner.run, StepComputer.compute

    def recording_run(self: Runner, walk: str, rows: Sequence[StepRow], before_compute: BeforeCompute) -> torch.Tensor:
        recording.steps.append((walk, list(rows)))
        return run(self, walk, rows, before_compute)

    def recording_compute(
        self: StepComputer, buffers: StepBuffers, rows: Sequence[StepRow], before_compute: BeforeCompute
    ) -> torch.Tensor:
        recording.dispatched.append(sum(len(row.token_ids) for row in rows))
        return compute(self, buffers, rows, before_compute)

    monkeypatch.setattr(Runner, "run", recording_run)
    monkeypatch.setattr(StepComputer, "compute", recording_compute)
    with OfflineEngine.open(serving, num_kv_blocks=num_kv_blocks, threads=1) as engine:
        yield engine, recording


def request(prompt: Sequence[int], max_tokens: int = 1, request_id: str = "r") -> GenerationRequest:
    """A greedy request that generates just so many tokens."""
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(temperature=0),
        stopping=StoppingParams(max_tokens=max_tokens, ignore_eos=True),
        max_total_len=len(prompt) + max_tokens,
    )


def random_prompts(lengths: Sequence[int], vocab_size: int = 256, seed: int = 0) -> list[list[int]]:
    """Prompts that share no prefix worth a block."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def serving_of(model: Path, budget: int | None, **overrides: object) -> ServingConfig:
    """A config for batches of a model; rungs are made from the budget."""
    return ServingConfig.model_validate(
        {
            "model": str(model),
            "kv": {"block_size": 8},
            "max_batch_tokens": {"prefill": {"prefill_text": budget}},
            "max_num_seqs": {"prefill": 16, "decode": 16},
            **overrides,
        }
    )
