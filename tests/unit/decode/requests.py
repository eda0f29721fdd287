"""Requests in short form."""

from decode_service.request import GenerationRequest
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
