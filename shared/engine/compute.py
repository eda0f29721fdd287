"""Computes one step in given buffers: inputs, layers, and the LM head for the rows that want logits."""

from collections.abc import Sequence

import torch

from shared.engine.buffers import LoadedStep, StepBuffers, row_buffer
from shared.engine.models.decoder import run_layers
from shared.engine.models.loaded import LoadedModel
from shared.engine.models.rope import rope_table
from shared.engine.ops import AttentionSpec, HeadBuffers, Kernels
from shared.engine.pool import BlockPool
from shared.engine.step import BeforeCompute, StepRow, do_nothing


class StepComputer:
    """One model over one pool, and the buffers that do not depend on a step's size.

    Attributes:
        spec: what attention works on.
        head_buffers: of the rows that want logits.
    """

    def __init__(self, model: LoadedModel, pool: BlockPool, max_num_rows: int) -> None:
        self._model = model
        self.spec = _attention_spec(model, pool)
        hidden_size, vocab_size = model.config.hidden_size, model.config.vocab_size
        self.head_buffers = HeadBuffers(
            hidden=row_buffer(model, max_num_rows, hidden_size),
            normed=row_buffer(model, max_num_rows, hidden_size, model.ops.activation_dtype),
            logits=row_buffer(model, max_num_rows, vocab_size),
        )

    def allocate(self, num_tokens: int, num_rows: int) -> StepBuffers:
        """Buffers for steps of up to so many tokens in up to so many rows."""
        return StepBuffers.allocate(self._model, self.spec, self.head_buffers, num_tokens, num_rows)

    @torch.inference_mode()
    def compute(
        self, buffers: StepBuffers, rows: Sequence[StepRow], before_compute: BeforeCompute = do_nothing
    ) -> torch.Tensor:
        """Writes the KV of all rows.

        Returns:
            float32 [rows that want logits, vocab_size], valid until the next call.
        """
        step = self.begin(buffers, rows)
        before_compute()
        if buffers.program is not None:
            buffers.program()
            return self.head_buffers.logits[: step.packed.num_logits]
        self.embed(buffers, step)
        self.run_layers(buffers.first(step.packed.num_tokens), buffers.kernels)
        return self.logits(buffers, step)

    def begin(self, buffers: StepBuffers, rows: Sequence[StepRow]) -> LoadedStep:
        """Writes a step into the buffers: inputs, vectors that are not looked up, and what attention plans."""
        step = buffers.inputs.load(rows)
        first = 0
        for row in rows:
            if row.input_embeddings is not None:
                vectors = torch.tensor(row.input_embeddings)
                buffers.activations.hidden[first : first + len(vectors)].copy_(vectors)
            first += len(row.token_ids)
        buffers.kernels.begin_step(step.packed)
        return step

    def embed(self, buffers: StepBuffers, step: LoadedStep) -> None:
        """Begins the residual stream."""
        hidden = buffers.activations.hidden[: step.packed.num_tokens]
        buffers.kernels.embed(step.token_ids, self._model.weights.embedding, hidden)

    def run_layers(self, buffers: StepBuffers, kernels: Kernels) -> None:
        """Takes the residual stream of all tokens of `buffers` through the layers of the step that has begun."""
        run_layers(self._model.weights, self._model.config.norm_eps, kernels, buffers.activations)

    @torch.inference_mode()
    def logits_of(self, buffers: StepBuffers, first: int, end: int) -> torch.Tensor:
        """Of tokens [first, end) of the step that was computed in `buffers` last; overwrites what `compute` gave.

        Returns:
            float32 [end - first, vocab_size], valid until the next call.
        """
        weights, eps, hidden = self._model.weights, self._model.config.norm_eps, buffers.activations.hidden
        tokens = torch.arange(first, end, device=hidden.device)
        buffers.kernels.head(hidden, tokens, weights.norm, eps, weights.lm_head, self.head_buffers)
        return self.head_buffers.logits[: end - first]

    def logits(self, buffers: StepBuffers, step: LoadedStep) -> torch.Tensor:
        """As `compute`, once the layers have run."""
        weights, eps, hidden = self._model.weights, self._model.config.norm_eps, buffers.activations.hidden
        buffers.kernels.head(hidden, step.logit_tokens, weights.norm, eps, weights.lm_head, self.head_buffers)
        return self.head_buffers.logits[: step.packed.num_logits]


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
