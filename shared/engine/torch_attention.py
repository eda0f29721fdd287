"""Attention over blocks, in tiles whose bits do not depend on what else is in the step.

A row's positions are cut at multiples of the tile length; a tile's queries (all heads that share a KV head) meet the
keys in groups of a fixed number of blocks, with the running maximum and sum of an online softmax (Milakov & Gimelshein
2018). How many groups a query meets, and what is masked in the last one, depends on its position alone. `tiling.py`
says which tiles there are; this module computes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shared.engine.ops import AttentionSpec, PackedStep
from shared.engine.storage import zeros
from shared.engine.tiling import (
    MOST_POSITIONS_A_BATCH,
    MOST_TILES_A_BATCH,
    TileGroup,
    Tiling,
    group_len,
    most_positions,
    plan_tiles,
    probe_tile_lens,
)


@dataclass(frozen=True)
class _GroupViews:
    """The work buffers as one group of keys uses them; n is tiles still in play times KV heads."""

    keys_index: torch.Tensor
    keys: torch.Tensor
    """[n * blocks of a group, block_size * head_dim], in the pool's dtype"""
    keys_by_head: torch.Tensor
    """[n, head_dim, group_len]"""
    values_by_head: torch.Tensor
    """[n, group_len, head_dim]"""
    queries: torch.Tensor
    """[n, tile queries, head_dim]"""
    scores: torch.Tensor
    """[n, tile queries, group_len]"""
    masked_scores: torch.Tensor
    """[tiles that end here, KV heads, tile length, heads a KV head, group_len], a view of scores"""
    is_later: torch.Tensor
    """bool [tiles that end here, 1, tile length, 1, group_len]: whether the key is later than the query"""
    ending_values: torch.Tensor
    """[tiles that end here, KV heads, group_len, head_dim], a view of values_by_head"""
    is_stale: torch.Tensor
    """bool [tiles that end here, 1, group_len, 1]: whether the sequence has no token there"""
    outputs: torch.Tensor
    """[n, tile queries, head_dim]"""
    stats: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    """Maximum, sum, new maximum or sum, correction; each [n, tile queries, 1]"""


@dataclass(frozen=True)
class _BatchViews:
    """Tiles that are computed together."""

    query_index: torch.Tensor
    queries: torch.Tensor
    """[tiles * KV heads * tile queries, head_dim]"""
    outputs: torch.Tensor
    """[tiles * KV heads, tile queries, head_dim]"""
    sums: torch.Tensor
    groups: Sequence[_GroupViews]


class TiledAttention:
    """Attention of one model over its pool, for steps up to some number of tokens."""

    def __init__(self, spec: AttentionSpec, num_tokens: int) -> None:
        """Allocates all work buffers."""
        self._spec = spec
        self._heads_per_kv = spec.num_heads // spec.num_kv_heads
        self._scale = spec.head_dim**-0.5
        self._group_len = group_len(spec.block_size)
        device, is_narrow = spec.pool.device, spec.pool.dtype != torch.float32
        num_queries = MOST_POSITIONS_A_BATCH * spec.num_heads
        num_group_values = MOST_TILES_A_BATCH * spec.num_kv_heads * self._group_len * spec.head_dim
        self._queries = zeros(num_queries, spec.head_dim, device=device)
        self._scores = zeros(num_queries * self._group_len, device=device)
        self._gathered = zeros(num_group_values, dtype=spec.pool.dtype, device=device)
        self._widened = zeros(num_group_values, device=device) if is_narrow else self._gathered
        self._stats = zeros(4, num_queries, device=device)
        self._outputs = zeros(most_positions(num_tokens) * spec.num_heads, spec.head_dim, device=device)
        self._blocks = spec.pool.view(-1, spec.block_size * spec.head_dim)
        self._batches: Sequence[_BatchViews] = ()
        self._output_index = zeros(0, dtype=torch.int64, device=device)

    def begin_step(self, step: PackedStep) -> None:
        """Plans the tiles of a step and lays the buffers out for them; all layers use the same."""
        spec, device = self._spec, self._spec.pool.device
        lens = probe_tile_lens(self._heads_per_kv, spec.head_dim, self._group_len, torch.get_num_threads(), device)
        tiling = plan_tiles(spec, step, lens)
        self._output_index = tiling.output_index.to(device)
        self._batches = self._lay_out(tiling)

    def run(self, qkv: torch.Tensor, layer: int, out: torch.Tensor) -> None:
        """As `Kernels.attention`."""
        head_rows = qkv.view(-1, self._spec.head_dim)
        blocks_a_layer = 2 * self._spec.num_kv_heads
        keys = self._blocks[layer * blocks_a_layer :]
        values = self._blocks[layer * blocks_a_layer + self._spec.num_kv_heads :]
        for batch in self._batches:
            torch.index_select(head_rows, 0, batch.query_index, out=batch.queries)
            for index, group in enumerate(batch.groups):
                self._attend(group, keys, values, is_first=index == 0)
            batch.outputs.div_(batch.sums)
        torch.index_select(self._outputs, 0, self._output_index, out=out.view(-1, self._spec.head_dim))

    def _attend(self, group: _GroupViews, keys: torch.Tensor, values: torch.Tensor, *, is_first: bool) -> None:
        """Takes one group of keys and values into the tiles' maxima, sums and outputs."""
        maximum, total, new, correction = group.stats
        scores = group.scores
        self._gather(keys, group)
        torch.baddbmm(scores, group.queries, group.keys_by_head, beta=0, alpha=self._scale, out=scores)
        group.masked_scores.masked_fill_(group.is_later, -torch.inf)
        if is_first:
            torch.amax(scores, dim=-1, keepdim=True, out=maximum)
        else:
            torch.amax(scores, dim=-1, keepdim=True, out=new)
            torch.maximum(new, maximum, out=new)
            torch.sub(maximum, new, out=correction).exp_()
            maximum.copy_(new)
        scores.sub_(maximum).exp_()
        self._gather(values, group)
        # The weight is 0 there, but 0 times what an earlier owner of the block left may be no number.
        group.ending_values.masked_fill_(group.is_stale, 0)
        if is_first:
            torch.sum(scores, dim=-1, keepdim=True, out=total)
            torch.bmm(scores, group.values_by_head, out=group.outputs)
        else:
            torch.sum(scores, dim=-1, keepdim=True, out=new)
            total.mul_(correction).add_(new)
            group.outputs.mul_(correction)
            torch.baddbmm(group.outputs, scores, group.values_by_head, out=group.outputs)

    def _gather(self, blocks: torch.Tensor, group: _GroupViews) -> None:
        torch.index_select(blocks, 0, group.keys_index, out=group.keys)
        if self._widened is not self._gathered:
            size = group.keys.numel()
            self._widened[:size].copy_(self._gathered[:size])

    def _lay_out(self, tiling: Tiling) -> list[_BatchViews]:
        batches, first_output = [], 0
        for batch in tiling.batches:
            num_queries = batch.tile_len * self._heads_per_kv
            num_rows = batch.query_index.shape[0]
            outputs = self._outputs[first_output : first_output + num_rows].view(-1, num_queries, self._spec.head_dim)
            groups = [self._lay_out_group(group, batch.tile_len, outputs) for group in batch.groups]
            sums = self._stats[1][:num_rows].view(-1, num_queries, 1)
            query_index = batch.query_index.to(self._queries.device)
            batches.append(_BatchViews(query_index, self._queries[:num_rows], outputs, sums, groups))
            first_output += num_rows
        return batches

    def _lay_out_group(self, group: TileGroup, tile_len: int, outputs: torch.Tensor) -> _GroupViews:
        spec, num_queries, device = self._spec, tile_len * self._heads_per_kv, self._queries.device
        size = group.num_tiles * spec.num_kv_heads
        num_values = size * self._group_len * spec.head_dim
        by_head = self._widened[:num_values].view(size, self._group_len, spec.head_dim)
        scores = self._scores[: size * num_queries * self._group_len].view(size, num_queries, self._group_len)
        by_tile = scores.view(group.num_tiles, spec.num_kv_heads, tile_len, self._heads_per_kv, self._group_len)
        first_ending = group.num_tiles - len(group.is_later)
        maximum, total, new, correction = (
            stat[: size * num_queries].view(size, num_queries, 1) for stat in self._stats
        )
        return _GroupViews(
            keys_index=group.blocks_index.to(device),
            keys=self._gathered[:num_values].view(-1, spec.block_size * spec.head_dim),
            keys_by_head=by_head.transpose(1, 2),
            values_by_head=by_head,
            queries=self._queries[: size * num_queries].view(size, num_queries, spec.head_dim),
            scores=scores,
            masked_scores=by_tile[first_ending:],
            is_later=group.is_later[:, None, :, None, :].to(device),
            ending_values=by_head.view(group.num_tiles, spec.num_kv_heads, *by_head.shape[1:])[first_ending:],
            is_stale=group.is_stale[:, None, :, None].to(device),
            outputs=outputs[:size],
            stats=(maximum, total, new, correction),
        )
