"""Computes one step in given buffers: inputs, layers, and the LM head for the rows that want logits."""

from collections.abc import Sequence

import torch

from shared.engine.buffers import StepBuffers, row_buffer
from shared.engine.models.decoder import run_layers
from shared.engine.models.loaded import LoadedModel
from shared.engine.models.rope import rope_table
from shared.engine.ops import AttentionSpec
from shared.engine.step import StepRow
from shared.kv.pool import KvPool


class StepComputer:
    """One model over one pool, and the buffers that do not depend on a step's size."""

    def __init__(self, model: LoadedModel, pool: KvPool, max_num_rows: int) -> None:
        self._model = model
        self._max_num_rows = max_num_rows
        self._spec = _attention_spec(model, pool)
        hidden_size, vocab_size = model.config.hidden_size, model.config.vocab_size
        self._last_hidden = row_buffer(model, max_num_rows, hidden_size)
        self._last_normed = row_buffer(model, max_num_rows, hidden_size, model.ops.activation_dtype)
        self._logits = row_buffer(model, max_num_rows, vocab_size)

    def allocate(self, num_tokens: int, num_rows: int) -> StepBuffers:
        """Buffers for steps of up to so many tokens in up to so many rows."""
        return StepBuffers.allocate(self._model, self._spec, num_tokens, num_rows)

    @torch.inference_mode()
    def compute(self, buffers: StepBuffers, rows: Sequence[StepRow]) -> torch.Tensor:
        """Writes the KV of all rows.

        Returns:
            float32 [rows that want logits, vocab_size], valid until the next call.
        """
        step = buffers.inputs.load(rows)
        activations = buffers.activations.first(step.packed.num_tokens)
        self._embed(rows, step.token_ids, activations.hidden)
        buffers.kernels.begin_step(step.packed)
        run_layers(self._model.weights, self._model.config.norm_eps, buffers.kernels, activations)
        num_logits = step.logit_tokens.shape[0]
        if num_logits > 0:
            self._run_head(buffers, activations.hidden, step.logit_tokens)
        return self._logits[:num_logits]

    def _embed(self, rows: Sequence[StepRow], token_ids: torch.Tensor, hidden: torch.Tensor) -> None:
        """Begins the residual stream: rows of the embedding table, or the vectors that stand in their place."""
        hidden.copy_(self._model.weights.embedding.index_select(0, token_ids))
        first = 0
        for row in rows:
            if row.input_embeddings is not None:
                vectors = torch.tensor(row.input_embeddings)
                hidden[first : first + len(vectors)].copy_(vectors)
            first += len(row.token_ids)

    def _run_head(self, buffers: StepBuffers, hidden: torch.Tensor, tokens: torch.Tensor) -> None:
        weights, count = self._model.weights, tokens.shape[0]
        last_hidden, last_normed = self._last_hidden[:count], self._last_normed[:count]
        torch.index_select(hidden, 0, tokens, out=last_hidden)
        buffers.kernels.rmsnorm(last_hidden, weights.norm, self._model.config.norm_eps, last_normed)
        buffers.kernels.linear(last_normed, weights.lm_head, self._logits[:count])


def _attention_spec(model: LoadedModel, pool: KvPool) -> AttentionSpec:
    config = model.config
    return AttentionSpec(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=pool.layout.block_size,
        rope_table=rope_table(config.rope, config.head_dim, config.max_model_len),
        pool=pool.tensor,
    )
