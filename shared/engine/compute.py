"""Computes one step in given buffers: inputs, layers, and the LM head for the rows that want logits."""

from collections.abc import Sequence

import torch

from shared.engine.buffers import LoadedStep, StepBuffers, row_buffer
from shared.engine.models.decoder import run_layers
from shared.engine.models.loaded import LoadedModel
from shared.engine.models.rope import rope_table
from shared.engine.ops import AttentionSpec, Kernels
from shared.engine.pool import BlockPool
from shared.engine.step import StepRow


class StepComputer:
    """One model over one pool, and the buffers that do not depend on a step's size.

    Attributes:
        spec: what attention works on.
        head_buffers: hidden states, normed ones, and logits of the rows that want logits.
    """

    def __init__(self, model: LoadedModel, pool: BlockPool, max_num_rows: int) -> None:
        self._model = model
        self.spec = _attention_spec(model, pool)
        hidden_size, vocab_size = model.config.hidden_size, model.config.vocab_size
        self.head_buffers = (
            row_buffer(model, max_num_rows, hidden_size),
            row_buffer(model, max_num_rows, hidden_size, model.ops.activation_dtype),
            row_buffer(model, max_num_rows, vocab_size),
        )

    def allocate(self, num_tokens: int, num_rows: int) -> StepBuffers:
        """Buffers for steps of up to so many tokens in up to so many rows."""
        return StepBuffers.allocate(self._model, self.spec, num_tokens, num_rows)

    @torch.inference_mode()
    def compute(self, buffers: StepBuffers, rows: Sequence[StepRow]) -> torch.Tensor:
        """Writes the KV of all rows.

        Returns:
            float32 [rows that want logits, vocab_size], valid until the next call.
        """
        step = self.load(buffers, rows)
        if buffers.program is not None:
            buffers.program()
        else:
            self.run_layers(buffers.first(step.packed.num_tokens), buffers.kernels)
        return self.logits(buffers, step)

    def load(self, buffers: StepBuffers, rows: Sequence[StepRow]) -> LoadedStep:
        """Writes a step into the buffers: inputs, the beginning of the residual stream, and what attention plans."""
        step = buffers.inputs.load(rows)
        self._embed(rows, step.token_ids, buffers.activations.hidden[: step.packed.num_tokens])
        buffers.kernels.begin_step(step.packed)
        return step

    def run_layers(self, buffers: StepBuffers, kernels: Kernels) -> None:
        """Takes the residual stream of all tokens of `buffers` through the layers of the step loaded last."""
        run_layers(self._model.weights, self._model.config.norm_eps, kernels, buffers.activations)

    def logits(self, buffers: StepBuffers, step: LoadedStep) -> torch.Tensor:
        """As `compute`, once the layers have run."""
        weights, count = self._model.weights, step.logit_tokens.shape[0]
        last_hidden, last_normed, logits = (buffer[:count] for buffer in self.head_buffers)
        if count > 0:
            torch.index_select(buffers.activations.hidden, 0, step.logit_tokens, out=last_hidden)
            buffers.kernels.rmsnorm(last_hidden, weights.norm, self._model.config.norm_eps, last_normed)
            buffers.kernels.linear(last_normed, weights.lm_head, logits)
        return logits

    def _embed(self, rows: Sequence[StepRow], token_ids: torch.Tensor, hidden: torch.Tensor) -> None:
        """Begins the residual stream: rows of the embedding table, or the vectors that stand in their place."""
        hidden.copy_(self._model.weights.embedding.index_select(0, token_ids))
        first = 0
        for row in rows:
            if row.input_embeddings is not None:
                vectors = torch.tensor(row.input_embeddings)
                hidden[first : first + len(vectors)].copy_(vectors)
            first += len(row.token_ids)


def _attention_spec(model: LoadedModel, pool: BlockPool) -> AttentionSpec:
    config = model.config
    return AttentionSpec(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=pool.layout.block_size,
        rope_table=rope_table(config.rope, config.head_dim, config.max_model_len).to(model.device),
        pool=pool.tensor,
    )
