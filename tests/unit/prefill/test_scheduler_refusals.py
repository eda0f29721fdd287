from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shared.errors import InvalidRequestError, Reason
from shared.sampling.params import SamplingParams
from tests.unit.prefill.bench import MAX_MODEL_LEN, VOCAB_SIZE, Bench, task

MakeBench = Callable[..., Bench]

REFUSED: dict[str, tuple[dict[str, Any], Reason, str, dict[str, str]]] = {
    "empty": (
        {"token_ids": ()},
        Reason.PROMPT_EMPTY,
        "the prompt has 0 tokens; needs 1 to 63",
        {"prompt_tokens": "0", "max_model_len": "64"},
    ),
    "no room for an answer": (
        {"token_ids": (1,) * MAX_MODEL_LEN},
        Reason.PROMPT_TOO_LONG,
        "the prompt has 64 tokens; needs 1 to 63",
        {"prompt_tokens": "64", "max_model_len": "64"},
    ),
    "larger than the pool": (
        {"token_ids": (1,) * 33},
        Reason.REQUEST_EXCEEDS_POOL,
        "the prompt needs 9 KV blocks; the prefill pool has 8",
        {"needed_blocks": "9", "pool_blocks": "8"},
    ),
    "inside a block": (
        {"first_needed_token": 2},
        Reason.PREFILL_REQUEST_INVALID,
        "first_needed_token is 2; needs a multiple of 4 below 8",
        {"first_needed_token": "2", "block_size": "4"},
    ),
    "nothing needed": (
        {"first_needed_token": 8},
        Reason.PREFILL_REQUEST_INVALID,
        "first_needed_token is 8; needs a multiple of 4 below 8",
        {"first_needed_token": "8", "block_size": "4"},
    ),
    "token id": (
        {"token_ids": (1, VOCAB_SIZE, 2)},
        Reason.TOKEN_ID_OUT_OF_RANGE,
        "token id 100 is out of range; needs 0 to 99",
        {"token_id": "100", "vocab_size": "100"},
    ),
    "banned token id": (
        {"banned_token_ids": (5, 400)},
        Reason.TOKEN_ID_OUT_OF_RANGE,
        "token id 400 is out of range; needs 0 to 99",
        {"token_id": "400", "vocab_size": "100"},
    ),
    "biased token id": (
        {"sampling": SamplingParams(logit_bias=((3, 1.0), (101, 1.0)))},
        Reason.TOKEN_ID_OUT_OF_RANGE,
        "token id 101 is out of range; needs 0 to 99",
        {"token_id": "101", "vocab_size": "100"},
    ),
    "nothing but generated": (
        {"num_generated_tokens": 8},
        Reason.PREFILL_REQUEST_INVALID,
        "8 of 8 tokens are generated, of 1 completions; needs a prompt before them, and one completion",
        {"num_generated_tokens": "8", "tokens": "8", "n": "1"},
    ),
    "generated of several": (
        {"num_generated_tokens": 1, "sampling": SamplingParams(n=2)},
        Reason.PREFILL_REQUEST_INVALID,
        "1 of 8 tokens are generated, of 2 completions; needs a prompt before them, and one completion",
        {"num_generated_tokens": "1", "tokens": "8", "n": "2"},
    ),
    "logprobs": (
        {"logprobs": 21},
        Reason.PREFILL_REQUEST_INVALID,
        "logprobs is 21; at most 20 are given",
        {"name": "logprobs", "value": "21", "max_logprobs": "20"},
    ),
    "prompt_logprobs": (
        {"prompt_logprobs": 21},
        Reason.PREFILL_REQUEST_INVALID,
        "prompt_logprobs is 21; at most 20 are given",
        {"name": "prompt_logprobs", "value": "21", "max_logprobs": "20"},
    ),
    "scores of vectors": (
        {"prompt_logprobs": 0, "input_embeddings": np.ones((8, 2), np.float32)},
        Reason.PREFILL_REQUEST_INVALID,
        "prompt_logprobs of a prompt of embeddings, which has no tokens",
        {},
    ),
    "transport": (
        {"transport": "pigeon"},
        Reason.PREFILL_REQUEST_INVALID,
        "transport 'pigeon' is not offered; needs one of ['grpc', 'local']",
        {"transport": "pigeon"},
    ),
}


@pytest.mark.parametrize(("change", "reason", "message", "metadata"), REFUSED.values(), ids=REFUSED)
def test_a_bad_task_is_refused_with_reason_and_numbers(
    bench: MakeBench, change: dict[str, Any], reason: Reason, message: str, metadata: dict[str, str]
) -> None:
    made = bench()
    before = made.counts
    with pytest.raises(InvalidRequestError) as caught:
        made.scheduler.submit(replace(task("a", 8), **change))
    assert (caught.value.reason, caught.value.message, caught.value.metadata) == (reason, message, metadata)
    assert made.counts == before
    assert made.loop.submitted == []
    made.submit("a", 8)


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": (1,) * 32},
        {"token_ids": (0, VOCAB_SIZE - 1)},
        {"first_needed_token": 4},
        {"banned_token_ids": (VOCAB_SIZE - 1,)},
        {"transport": "grpc"},
    ],
    ids=["the whole pool", "every token id", "all but one block", "banned", "transport"],
)
def test_the_largest_that_is_served(bench: MakeBench, change: dict[str, Any]) -> None:
    made = bench()
    made.scheduler.submit(replace(task("a", 8), **change))
    assert made.loop.submitted_ids == ["a"]
