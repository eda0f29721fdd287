"""A runner whose arithmetic is checked by hand: after token t it wants t + 1."""

from collections.abc import Sequence

import torch

from shared.engine.step import BeforeCompute, StepRow

VOCAB_SIZE = 100


class CountingRunner:
    """Keeps every step it was given; `fail_on` names a token that makes a step fail."""

    def __init__(self, fail_on: int | None = None) -> None:
        self.steps: list[tuple[str, list[StepRow]]] = []
        self._fail_on = fail_on

    def run(self, walk: str, rows: Sequence[StepRow], before_compute: BeforeCompute) -> torch.Tensor:
        before_compute()
        self.steps.append((walk, list(rows)))
        if any(self._fail_on in row.token_ids for row in rows):
            raise RuntimeError("no memory")
        finals = [row for row in rows if row.wants_logits]
        return _logits_after([row.token_ids[-1] for row in finals])

    @property
    def max_num_logits(self) -> int:
        return 2

    def logits_of(self, first: int, end: int) -> torch.Tensor:
        assert end - first <= self.max_num_logits
        _, rows = self.steps[-1]
        return _logits_after([token_id for row in rows for token_id in row.token_ids][first:end])

    @property
    def shapes(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """Each step as its walk and the (start, length) of its rows."""
        return [(walk, [(row.start, len(row.token_ids)) for row in rows]) for walk, rows in self.steps]


def _logits_after(token_ids: Sequence[int]) -> torch.Tensor:
    logits = torch.zeros(len(token_ids), VOCAB_SIZE)
    for index, token_id in enumerate(token_ids):
        logits[index, (token_id + 1) % VOCAB_SIZE] = 1.0
    return logits
