"""The one config that both services share: model, budgets, ladders (`configs/serving.yaml`).

A ladder that is left out is made by `shared.config.resolve`: doubling rungs up to the first that holds the walk's
budget (or the node's most rows). A ladder that is given is never extended.

`prefill_token_buckets.decode.prefill_text` may be given too. It is a walk inside the combined walk `mixed`, so it has
`mixed`'s budget; left out, it runs on `mixed`'s rungs. Given, the decode node prepares its rungs as a walk of its own,
for steps that hold prompt chunks and no decode rows.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, model_validator

from shared.config.schema import (
    AT_MOST_MAX,
    MAX_INTEGER,
    AtLeastOne,
    AtLeastTwo,
    AtLeastZero,
    Rungs,
    StrictModel,
    Text,
    describe,
    is_integer,
    refuse,
)

DEFAULT_PREFILL_BUDGET = 2048
DEFAULT_MIXED_BUDGET = 512


class KvConfig(StrictModel):
    """How KV lies in the pool.

    Attributes:
        block_size: tokens a block.
    """

    block_size: AtLeastOne = 32


class PrefillBudgets(StrictModel):
    """Step budgets of the prefill node, in tokens; None: prompts are not chunked."""

    key_noun: ClassVar[str] = "walk"
    prefill_text: AtLeastOne | None = DEFAULT_PREFILL_BUDGET


class DecodeBudgets(StrictModel):
    """Step budgets of the decode node, in tokens, decode rows included; None: prompts are not chunked."""

    key_noun: ClassVar[str] = "walk"
    mixed: AtLeastOne | None = DEFAULT_MIXED_BUDGET


def _budget_of_walk(walk: str) -> Callable[[object], object]:
    """Reads `node: 2048` as `node: {walk: 2048}`."""
    needs = f"an integer ≥ 1, or a mapping with the key {walk}"

    def expand(value: object) -> object:
        if isinstance(value, dict | StrictModel):
            return value
        if not isinstance(value, int) or not is_integer(value) or value < 1:
            raise refuse(describe(value), needs)
        if value > MAX_INTEGER:
            raise refuse(describe(value), AT_MOST_MAX)
        return {walk: value}

    return expand


class StepBudgets(StrictModel):
    """`max_batch_tokens`: node → budget of its token walk, or node → walk → budget."""

    key_noun: ClassVar[str] = "node"
    prefill: Annotated[PrefillBudgets, BeforeValidator(_budget_of_walk("prefill_text"))] = PrefillBudgets()
    decode: Annotated[DecodeBudgets, BeforeValidator(_budget_of_walk("mixed"))] = DecodeBudgets()


class RowLimits(StrictModel):
    """Most rows that each node runs."""

    key_noun: ClassVar[str] = "node"
    prefill: AtLeastOne = 64
    decode: AtLeastOne = 64


class PrefillTokenRungs(StrictModel):
    """Token ladders of the prefill node."""

    key_noun: ClassVar[str] = "walk"
    prefill_text: Rungs = None


class DecodeTokenRungs(StrictModel):
    """Token ladders of the decode node."""

    key_noun: ClassVar[str] = "walk"
    mixed: Rungs = None
    prefill_text: Rungs = None


class TokenLadders(StrictModel):
    """`prefill_token_buckets`: node → walk → ascending rungs in tokens."""

    key_noun: ClassVar[str] = "node"
    prefill: PrefillTokenRungs = PrefillTokenRungs()
    decode: DecodeTokenRungs = DecodeTokenRungs()


class DecodeRowRungs(StrictModel):
    """Row ladders of the decode node."""

    key_noun: ClassVar[str] = "walk"
    decode: Rungs = None


class RowLadders(StrictModel):
    """`decode_batch_buckets`: node → walk → ascending rungs in rows."""

    key_noun: ClassVar[str] = "node"
    decode: DecodeRowRungs = DecodeRowRungs()


class ServingConfig(StrictModel):
    """What both services must agree on.

    Attributes:
        model: a built-in name, a directory, or a Hugging Face id.
        dtype: of weights and KV; auto: bfloat16 where it is fast, else float32.
        weights: what linears and the LM head hold: values of the dtype, or int8 that is made from them at load.
        kernels: what computes: native kernels (bfloat16 alone), plain torch, or auto: native ones where they can run.
        max_model_len: most tokens of a prompt and its completion together; None: the model's own limit.
        max_batch_tokens: step budgets.
        long_prefill_token_threshold: most tokens that one request gets in a step; 0: no cap. A walk without a budget
            is not chunked, by this neither.
        max_partial_prefills: most rows in a step that are a chunk (first, middle or last) of a longer prompt;
            0: no cap.
        local_prefill_max_tokens: decode computes a prompt itself when no more than this is uncached; None: always.
        max_num_seqs: most rows that a node runs.
        prefill_token_buckets: rungs of the walks whose captures are packed tokens.
        decode_batch_buckets: rungs of the `decode` walk, in rows.
    """

    known_mistakes: ClassVar[dict[str, str]] = {
        "max_batch_tokens.decode.decode": "found a budget on a walk that has none, as its rows have one token each; "
        "needs max_num_seqs.decode instead",
        "max_batch_tokens.decode.prefill_text": "found a budget on a walk inside the combined walk `mixed`, whose "
        "budget it shares; needs max_batch_tokens.decode.mixed instead",
        "prefill_token_buckets.decode.decode": "found a walk that has no token-packed capture; needs its rungs, in "
        "rows, in decode_batch_buckets.decode.decode",
        "decode_batch_buckets.decode.mixed": "found a walk whose capture is packed tokens; needs its rungs, in tokens, "
        "in prefill_token_buckets.decode.mixed",
        "decode_batch_buckets.prefill": "found a node that runs no walk in rows; needs prefill_token_buckets.prefill",
    }

    old_spellings: ClassVar[dict[str, str]] = {
        "model_kwargs.prefill_token_buckets": "found the old spelling; needs `prefill_token_buckets` at the top level "
        "(node → walk → rungs), for every model family",
    }

    model: Text = "smollm2-135m-instruct"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    weights: Literal["dtype", "int8"] = "dtype"
    kernels: Literal["auto", "native", "torch"] = "auto"
    max_model_len: AtLeastTwo | None = None
    kv: KvConfig = KvConfig()
    max_batch_tokens: StepBudgets = StepBudgets()
    long_prefill_token_threshold: AtLeastZero = 0
    max_partial_prefills: AtLeastZero = 0
    local_prefill_max_tokens: AtLeastZero | None = 0
    max_num_seqs: RowLimits = RowLimits()
    prefill_token_buckets: TokenLadders = TokenLadders()
    decode_batch_buckets: RowLadders = RowLadders()

    @model_validator(mode="after")
    def _rows_fit_the_ladder(self) -> Self:
        rungs = self.decode_batch_buckets.decode.decode
        num_rows = self.max_num_seqs.decode
        if rungs is not None and rungs[-1] < num_rows:
            raise refuse(
                f"the top rung {rungs[-1]}",
                f"a top rung ≥ {num_rows}, the most rows the node may run (max_num_seqs.decode)",
                path="decode_batch_buckets.decode.decode",
            )
        return self
