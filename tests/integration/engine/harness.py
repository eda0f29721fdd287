"""Runs sequences through a runner in any way they can be cut, and reads their KV back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from shared.config.resolve import ResolvedWalk
from shared.engine.runner import LoadedModel, Runner
from shared.engine.step import StepRow
from shared.kv.pool import KvPool
from shared.ladder import Ladder

WALK = "prefill_text"
BLOCK_SIZE = 32


@dataclass(frozen=True)
class Outcome:
    """What a sequence left: KV of its tokens, and the logits of its last one."""

    kv: torch.Tensor
    """[num_tokens, num_layers, 2, num_kv_heads, head_dim]"""
    logits: torch.Tensor
    """[vocab_size]"""

    def equals(self, other: "Outcome") -> bool:
        """Whether both are the same, bit for bit."""
        return torch.equal(self.kv, other.kv) and torch.equal(self.logits, other.logits)


class Harness:
    """A runner, its pool, and rows over them."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        rungs: Sequence[int] = (32, 64, 128, 256, 512),
        num_blocks: int = 64,
        max_num_rows: int = 64,
        compute_padding: bool = False,
    ) -> None:
        self.pool = KvPool.anonymous(model.kv_layout(BLOCK_SIZE), num_blocks, "epoch")
        walk = ResolvedWalk("prefill", WALK, None, Ladder(tuple(rungs)))
        self.runner = Runner(model, self.pool, [walk], max_num_rows=max_num_rows, compute_padding=compute_padding)

    def run(self, *rows: StepRow) -> torch.Tensor:
        """One step; logits that outlive it."""
        return self.runner.run(WALK, rows).clone()

    def kv(self, table: Sequence[int], num_tokens: int) -> torch.Tensor:
        """KV of a sequence, token by token."""
        layout = self.pool.layout
        blocks = self.pool.tensor[list(table)]
        shape = (len(table), layout.num_layers, 2, layout.num_kv_heads, BLOCK_SIZE, layout.head_dim)
        return blocks.view(shape).permute(0, 4, 1, 2, 3, 5).flatten(0, 1)[:num_tokens].clone()

    def outcome(self, token_ids: Sequence[int], table: Sequence[int], chunk_lens: Sequence[int]) -> Outcome:
        """Computes a sequence alone, chunk by chunk."""
        assert sum(chunk_lens) == len(token_ids)
        start = 0
        for length in chunk_lens:
            logits = self.run(StepRow(token_ids[start : start + length], start, table, wants_logits=True))
            start += length
        return Outcome(self.kv(table, len(token_ids)), logits[0])


def table_for(num_tokens: int, first_block: int = 1) -> list[int]:
    """Enough blocks in a row."""
    return list(range(first_block, first_block + -(-num_tokens // BLOCK_SIZE)))


def random_tokens(num_tokens: int, vocab_size: int, seed: int) -> list[int]:
    """Tokens of a sequence."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (num_tokens,), generator=generator).tolist()


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Torch with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
