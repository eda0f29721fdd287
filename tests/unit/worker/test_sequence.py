import numpy as np
import pytest

from shared.sampling.params import SamplingParams
from shared.text.stopping import StoppingParams
from shared.worker.sequence import Sequence

VECTORS = np.arange(10, dtype=np.float32).reshape(5, 2)


def sequence(num_computed_tokens: int, num_generated: int = 0, vectors: bool = True) -> Sequence:
    """A prompt of five vectors, and generated tokens 50, 51, …"""
    return Sequence(
        request_id="a",
        token_ids=[0] * 5 + list(range(50, 50 + num_generated)),
        prompt_len=5,
        num_computed_tokens=num_computed_tokens,
        block_table=(1, 2, 3),
        sampling=SamplingParams(temperature=0),
        stopping=StoppingParams(max_tokens=4),
        eos_token_ids=(),
        max_total_len=9,
        input_embeddings=VECTORS if vectors else None,
    )


@pytest.mark.parametrize(
    ("start", "num_tokens", "num_generated", "first", "end"),
    [
        (0, 5, 0, 0, 5),
        (0, 2, 0, 0, 2),
        (2, 2, 0, 2, 4),
        (4, 1, 0, 4, 5),
        # a first token sampled elsewhere, and part of the prompt still to compute
        (3, 3, 1, 3, 5),
    ],
)
def test_a_chunk_takes_its_own_vectors(start: int, num_tokens: int, num_generated: int, first: int, end: int) -> None:
    row = sequence(start, num_generated).step_row(num_tokens)
    assert row.input_embeddings is not None
    assert row.input_embeddings.tolist() == VECTORS[first:end].tolist()
    assert np.shares_memory(row.input_embeddings, VECTORS), "not copied"
    assert (len(row.token_ids), row.start, row.kv_len) == (num_tokens, start, start + num_tokens)
    assert row.wants_logits == (start + num_tokens == 5 + num_generated)


@pytest.mark.parametrize(("start", "num_tokens", "token_ids"), [(5, 1, [50]), (6, 1, [51]), (5, 2, [50, 51])])
def test_generated_tokens_take_none(start: int, num_tokens: int, token_ids: list[int]) -> None:
    row = sequence(start, num_generated=2).step_row(num_tokens)
    assert (row.input_embeddings, row.token_ids) == (None, token_ids)


def test_a_prompt_of_ids_takes_none() -> None:
    assert sequence(0, vectors=False).step_row(5).input_embeddings is None
