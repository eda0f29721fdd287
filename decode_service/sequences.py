"""A request as the steps see it."""

from collections.abc import Sequence as Several

from decode_service.completion import Completion
from decode_service.request import GenerationRequest
from shared.worker.engine import Engine
from shared.worker.ledger import Reservation
from shared.worker.sequence import Sequence


def sequence_of(
    request: GenerationRequest,
    engine: Engine,
    reservation: Reservation,
    completions: Several[Completion],
    *,
    name: str,
    token_ids: Several[int],
    num_computed_tokens: int,
) -> Sequence:
    """The sequence of completions that have not parted yet; one goes on, several end with the next token of each.

    Args:
        request: what is asked for.
        engine: what computes it.
        reservation: its blocks.
        completions: whose next token is to be drawn.
        name: what step events call it.
        token_ids: the prompt, and what was generated.
        num_computed_tokens: tokens whose KV is in the pool.
    """
    return Sequence(
        request_id=name,
        token_ids=list(token_ids),
        prompt_len=request.prompt_len,
        num_computed_tokens=num_computed_tokens,
        block_table=reservation.block_table,
        sampling=request.sampling,
        stopping=request.stopping,
        eos_token_ids=tuple(engine.tokenizer.eos_token_ids),
        max_total_len=request.max_total_len,
        priority=request.priority,
        input_embeddings=request.input_embeddings,
        indices=tuple(completion.index for completion in completions),
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        matcher=completions[0].matcher if len(completions) == 1 else request.matcher,
    )
