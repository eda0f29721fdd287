"""What a task must keep to, to be computed here: decode checks what its callers send, and this what decode sends."""

from dataclasses import dataclass

from prefill_service.job import PrefillTask
from shared.errors import InvalidRequestError, Reason
from shared.sampling.logprobs import MAX_LOGPROBS


@dataclass(frozen=True)
class TaskBounds:
    """The limits of one service.

    Attributes:
        max_model_len: tokens of a prompt and what follows it.
        vocab_size: token ids are below it.
        block_size: tokens a KV block.
        num_pool_blocks: KV blocks that a task can get.
        transports: names of those that handles may be for.
    """

    max_model_len: int
    vocab_size: int
    block_size: int
    num_pool_blocks: int
    transports: tuple[str, ...]

    def check(self, task: PrefillTask, num_blocks: int) -> None:
        """Refuses a task that cannot be computed here, or that contradicts itself.

        Args:
            task: what is asked for.
            num_blocks: KV blocks that its tokens take.

        Raises:
            InvalidRequestError: with the numbers.
        """
        prompt_len, block_size = len(task.token_ids), self.block_size
        if not 0 < prompt_len < self.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {prompt_len} tokens; needs 1 to {self.max_model_len - 1}",
                Reason.PROMPT_TOO_LONG if prompt_len else Reason.PROMPT_EMPTY,
                {"prompt_tokens": prompt_len, "max_model_len": self.max_model_len},
            )
        if num_blocks > self.num_pool_blocks:
            raise InvalidRequestError(
                f"the prompt needs {num_blocks} KV blocks; the prefill pool has {self.num_pool_blocks}",
                Reason.REQUEST_EXCEEDS_POOL,
                {"needed_blocks": num_blocks, "pool_blocks": self.num_pool_blocks},
            )
        if task.num_generated_tokens and (task.num_generated_tokens >= prompt_len or task.sampling.n > 1):
            raise InvalidRequestError(
                f"{task.num_generated_tokens} of {prompt_len} tokens are generated, of {task.sampling.n} completions; "
                "needs a prompt before them, and one completion",
                Reason.PREFILL_REQUEST_INVALID,
                {"num_generated_tokens": task.num_generated_tokens, "tokens": prompt_len, "n": task.sampling.n},
            )
        for name, num_alternatives in (("logprobs", task.logprobs), ("prompt_logprobs", task.prompt_logprobs)):
            if (num_alternatives or 0) > MAX_LOGPROBS:
                raise InvalidRequestError(
                    f"{name} is {num_alternatives}; at most {MAX_LOGPROBS} are given",
                    Reason.PREFILL_REQUEST_INVALID,
                    {"name": name, "value": num_alternatives, "max_logprobs": MAX_LOGPROBS},
                )
        if task.prompt_logprobs is not None and task.input_embeddings is not None:
            raise InvalidRequestError(
                "prompt_logprobs of a prompt of embeddings, which has no tokens", Reason.PREFILL_REQUEST_INVALID
            )
        if task.first_needed_token % block_size or not 0 <= task.first_needed_token < prompt_len:
            raise InvalidRequestError(
                f"first_needed_token is {task.first_needed_token}; needs a multiple of {block_size} below {prompt_len}",
                Reason.PREFILL_REQUEST_INVALID,
                {"first_needed_token": task.first_needed_token, "block_size": block_size},
            )
        biased = (token_id for token_id, _ in task.sampling.logit_bias)
        largest_id = max((*task.token_ids, *task.banned_token_ids, *biased))
        if largest_id >= self.vocab_size:
            raise InvalidRequestError(
                f"token id {largest_id} is out of range; needs 0 to {self.vocab_size - 1}",
                Reason.TOKEN_ID_OUT_OF_RANGE,
                {"token_id": largest_id, "vocab_size": self.vocab_size},
            )
        if task.transport not in self.transports:
            raise InvalidRequestError(
                f"transport {task.transport!r} is not offered; needs one of {sorted(self.transports)}",
                Reason.PREFILL_REQUEST_INVALID,
                {"transport": task.transport},
            )
