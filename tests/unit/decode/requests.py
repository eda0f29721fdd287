"""Requests in short form."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from decode_service.request import GenerationRequest
from shared.constraints.constraint import Constraint
from shared.constraints.matcher import ConstraintMatcher
from shared.sampling.params import SamplingParams
from shared.text.stopping import StoppingParams

GREEDY = SamplingParams(temperature=0)


def generation_request(
    request_id: str = "a",
    prompt: tuple[int, ...] = (1, 2, 3, 4),
    max_tokens: int = 4,
    priority: int = 0,
    stopping: StoppingParams | None = None,
    cache_salt: str = "",
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=GREEDY,
        stopping=stopping or StoppingParams(max_tokens=max_tokens),
        max_total_len=len(prompt) + max_tokens,
        priority=priority,
        cache_salt=cache_salt,
    )


def many_request(
    num_completions: int = 3,
    prompt: tuple[int, ...] = (1, 2, 3, 4, 5, 6),
    resumed: dict[int, bytes] | None = None,
    matcher: ConstraintMatcher | None = None,
    constraint: Constraint | None = None,
    prompt_logprobs: int | None = None,
    **stopping: Any,
) -> GenerationRequest:
    """A request of several completions: of three tokens each, unless it is told otherwise."""
    params = StoppingParams(**{"max_tokens": 3, **stopping})
    return replace(
        generation_request("a", prompt, params.max_tokens, stopping=params),
        sampling=replace(GREEDY, n=num_completions, constraint=constraint),
        resumed={index: tuple(token_ids) for index, token_ids in (resumed or {}).items()},
        matcher=matcher,
        prompt_logprobs=prompt_logprobs,
    )


def embeddings_request(request_id: str, vectors: npt.NDArray[np.float32], max_tokens: int = 4) -> GenerationRequest:
    request = generation_request(request_id, (0,) * len(vectors), max_tokens)
    return replace(request, input_embeddings=vectors)


def vectors_of(*values: float) -> npt.NDArray[np.float32]:
    """A vector of two equal values for each one given."""
    return np.repeat(np.array(values, np.float32)[:, None], 2, axis=1)
