"""Rows that no request owns, with KV in the scratch block: they fill steps up to their rung, and warm rungs up."""

from collections.abc import Iterator, Sequence

from shared.engine.step import StepRow
from shared.kv.allocator import SCRATCH_BLOCK


def with_padding(rows: Sequence[StepRow], num_tokens: int) -> Sequence[StepRow]:
    """The rows, filled up to `num_tokens` with tokens at position 0 that attend to themselves alone."""
    num_padding = num_tokens - sum(len(row.token_ids) for row in rows)
    return [*rows, *([StepRow([0], 0, [SCRATCH_BLOCK], wants_logits=False)] * num_padding)]


def scratch_rows(num_tokens: int, row_len: int, max_num_rows: int, block_size: int) -> Iterator[StepRow]:
    """Rows of up to `row_len` tokens, `num_tokens` in all or as many as `max_num_rows` hold, that want logits."""
    for _ in range(min(-(-num_tokens // row_len), max_num_rows)):
        this_len = min(row_len, num_tokens)
        num_tokens -= this_len
        yield StepRow([0] * this_len, 0, [SCRATCH_BLOCK] * -(-this_len // block_size), wants_logits=True)
