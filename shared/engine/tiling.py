"""Which tiles the plain-torch attention cuts a step into, and the indices that gather what each one needs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.ops import AttentionSpec, PackedStep

Ints = npt.NDArray[np.int64]

SHORT_TILE_LEN = 4
"""Positions a tile in rows of few tokens; what all other lengths are compared with."""
LONG_TILE_LEN = 32
"""Positions a tile in long rows, where it gives the same bits; must be a multiple of the short one."""
SHORT_ROW_LEN = 16
"""Rows up to this length use short tiles."""
MIN_GROUP_LEN = 128
"""Least keys a group: fewer make many small products, more waste work where a row ends."""
_POSITIONS_A_BATCH = {SHORT_TILE_LEN: 128, LONG_TILE_LEN: 256}
"""Positions that are computed together, so that work buffers stay small and in the caches."""
MOST_POSITIONS_A_BATCH = max(_POSITIONS_A_BATCH.values())
MOST_TILES_A_BATCH = max(positions // tile_len for tile_len, positions in _POSITIONS_A_BATCH.items())
"""Most of a batch, whichever tile lengths a machine uses."""


@dataclass(frozen=True)
class TileLens:
    """Which tile lengths give the same bits on this machine."""

    long_tile_len: int
    """Tile length of long rows: LONG_TILE_LEN, or SHORT_TILE_LEN where that does not agree with it."""

    def of_rows(self, row_lens: Ints) -> Ints:
        """Tile length of each row."""
        return np.where(row_lens <= SHORT_ROW_LEN, SHORT_TILE_LEN, self.long_tile_len)

    def tiles_a_batch(self, tile_len: int) -> int:
        """Most tiles that are computed together."""
        return _POSITIONS_A_BATCH[tile_len] // tile_len


@dataclass(frozen=True)
class TileGroup:
    """One group of keys of the tiles of a batch that reach so far: the first `num_tiles`."""

    num_tiles: int
    blocks_index: torch.Tensor
    """[num_tiles * KV heads * blocks of a group]: rows of the pool as [all blocks of all layers and heads], less the
    layer's own offset"""
    is_later: torch.Tensor
    """bool [tiles that end in this group, tile length, group length]: whether the key is later than the query; for the
    last ones of the `num_tiles`"""
    is_stale: torch.Tensor
    """bool [tiles that end in this group, group length]: whether the sequence has no token there, only what an earlier
    owner of the block left, which may be no number"""


@dataclass(frozen=True)
class TileBatch:
    """Tiles of one length that are computed together, those with more groups first."""

    tile_len: int
    query_index: torch.Tensor
    """[tiles * KV heads * tile length * heads a KV head]: rows of qkv as [all heads of all tokens]"""
    groups: Sequence[TileGroup]


@dataclass(frozen=True)
class Tiling:
    """All tiles of a step."""

    batches: Sequence[TileBatch]
    output_index: torch.Tensor
    """[num_tokens * num_heads]: where each token's heads lie in the outputs of all batches, one after another"""


@dataclass(frozen=True)
class _Tiles:
    """Tiles as parallel arrays."""

    row: Ints
    start: Ints
    """First position, a multiple of the tile length."""
    num_groups: Ints


def most_positions(num_tokens: int) -> int:
    """Most positions that the tiles of `num_tokens` tokens can hold: four a token.

    The worst rows are one token (a tile of 4), two on both sides of an edge (two tiles of 4) and 17 on both sides (two
    tiles of 32, 3.8 a token).
    """
    return 4 * num_tokens


def group_len(block_size: int) -> int:
    """Keys of a group: whole blocks, whole tiles, and no fewer than MIN_GROUP_LEN."""
    unit = math.lcm(block_size, LONG_TILE_LEN)
    return unit * -(-MIN_GROUP_LEN // unit)


def plan_tiles(spec: AttentionSpec, step: PackedStep, tile_lens: TileLens) -> Tiling:
    """Cuts a step into tiles. All tensors of the result are on the host."""
    row_starts, kv_lens = step.row_starts.numpy(), step.kv_lens.numpy()
    row_lens = np.diff(row_starts)
    lens_of_rows = tile_lens.of_rows(row_lens)
    batches: list[TileBatch] = []
    output_rows = np.empty((step.num_tokens, spec.num_kv_heads), dtype=np.int64)
    first_output = 0
    for tile_len in np.unique(lens_of_rows).tolist():
        rows = np.flatnonzero(lens_of_rows == tile_len)
        tiles = _cut(rows, kv_lens[rows] - row_lens[rows], kv_lens[rows], tile_len, group_len(spec.block_size))
        for batch in _batches(tiles, tile_lens.tiles_a_batch(tile_len)):
            tokens, is_real = _tokens_of(batch, row_starts, kv_lens, tile_len)
            batches.append(_plan_batch(spec, batch, tokens, step.block_table.numpy(), kv_lens, tile_len))
            tile_rows = first_output + np.arange(tokens.size * spec.num_kv_heads).reshape(
                len(tokens), spec.num_kv_heads, tile_len
            )
            output_rows[tokens[is_real]] = tile_rows.transpose(0, 2, 1)[is_real]
            first_output += tile_rows.size
    heads_per_kv = spec.num_heads // spec.num_kv_heads
    output_index = output_rows.reshape(-1, 1) * heads_per_kv + np.arange(heads_per_kv)
    return Tiling(batches, torch.from_numpy(output_index.reshape(-1)))


def _cut(rows: Ints, starts: Ints, ends: Ints, tile_len: int, keys_a_group: int) -> _Tiles:
    """Tiles of the rows with positions [starts, ends), those with more groups first."""
    first, last = starts // tile_len, (ends - 1) // tile_len
    counts = last - first + 1
    index = np.repeat(np.arange(len(rows)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    tile_starts = (first[index] + within) * tile_len
    num_groups = tile_starts // keys_a_group + 1
    order = np.argsort(-num_groups, kind="stable")
    return _Tiles(rows[index][order], tile_starts[order], num_groups[order])


def _batches(tiles: _Tiles, size: int) -> Iterator[_Tiles]:
    for start in range(0, len(tiles.row), size):
        part = slice(start, start + size)
        yield _Tiles(tiles.row[part], tiles.start[part], tiles.num_groups[part])


def _tokens_of(tiles: _Tiles, row_starts: Ints, kv_lens: Ints, tile_len: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The step's token at each position of each tile [tiles, tile_len], and whether the row has that position.

    Positions that it has not get one of its tokens, whose result there is not used.
    """
    first_token, end_token = row_starts[tiles.row], row_starts[tiles.row + 1]
    position_to_token = end_token - kv_lens[tiles.row]
    tokens = (tiles.start + position_to_token)[:, None] + np.arange(tile_len)
    is_real = (tokens >= first_token[:, None]) & (tokens < end_token[:, None])
    return np.clip(tokens, first_token[:, None], end_token[:, None] - 1), is_real


def _plan_batch(
    spec: AttentionSpec, tiles: _Tiles, tokens: Ints, block_table: Ints, kv_lens: Ints, tile_len: int
) -> TileBatch:
    heads_per_kv = spec.num_heads // spec.num_kv_heads
    heads_a_token = spec.qkv_len // spec.head_dim
    heads = np.arange(spec.num_heads).reshape(1, spec.num_kv_heads, 1, heads_per_kv)
    query_index = tokens[:, None, :, None] * heads_a_token + heads
    tables = _pool_rows(spec, tiles, block_table, kv_lens)
    seen = _seen(tiles, kv_lens, tile_len, group_len(spec.block_size))
    return TileBatch(
        tile_len=tile_len,
        query_index=torch.from_numpy(query_index.reshape(-1)),
        groups=list(_groups(spec, tiles, tables, *seen)),
    )


def _groups(
    spec: AttentionSpec, tiles: _Tiles, tables: Ints, is_later: torch.Tensor, is_stale: torch.Tensor
) -> Iterator[TileGroup]:
    num_groups = int(tiles.num_groups[0])
    blocks_a_group = group_len(spec.block_size) // spec.block_size
    num_reaching = [int(np.count_nonzero(tiles.num_groups > group)) for group in range(num_groups + 1)]
    for group in range(num_groups):
        reaching, going_on = num_reaching[group], num_reaching[group + 1]
        blocks = tables[:reaching, None, group * blocks_a_group : (group + 1) * blocks_a_group]
        index = blocks + np.arange(spec.num_kv_heads)[:, None]
        ending = slice(going_on, reaching)
        yield TileGroup(reaching, torch.from_numpy(index.reshape(-1)), is_later[ending], is_stale[ending])


def _pool_rows(spec: AttentionSpec, tiles: _Tiles, block_table: Ints, kv_lens: Ints) -> Ints:
    """[tiles, blocks of whole groups]: each block's first row in the pool; block 0's where the sequence has none."""
    blocks_a_group = group_len(spec.block_size) // spec.block_size
    num_blocks = int(tiles.num_groups[0]) * blocks_a_group
    rows, index = np.unique(tiles.row, return_inverse=True)
    tables = np.zeros((len(rows), num_blocks), dtype=np.int64)
    width = min(num_blocks, block_table.shape[1])
    held = np.arange(width) < -(-kv_lens[rows] // spec.block_size)[:, None]
    tables[:, :width] = np.where(held, block_table[rows, :width], 0)
    num_layers = spec.pool.shape[1]
    return tables[index] * (num_layers * 2 * spec.num_kv_heads)


def _seen(tiles: _Tiles, kv_lens: Ints, tile_len: int, keys_a_group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`is_later` and `is_stale` of the last group of each tile, the only one that it does not see whole."""
    offsets = tiles.start % keys_a_group
    keys = np.arange(keys_a_group)
    is_later = keys > (offsets[:, None] + np.arange(tile_len))[:, :, None]
    is_stale = keys >= (kv_lens[tiles.row] - tiles.start + offsets)[:, None]
    return torch.from_numpy(is_later), torch.from_numpy(is_stale)


@cache
def probe_tile_lens(
    heads_per_kv: int, head_dim: int, keys_a_group: int, num_threads: int, device: torch.device
) -> TileLens:
    """Finds whether long tiles give the bits of short ones for these shapes on this device."""
    assert num_threads == torch.get_num_threads()
    generator = torch.Generator().manual_seed(0)
    num_queries = LONG_TILE_LEN * heads_per_kv
    queries = torch.randn(num_queries, head_dim, generator=generator).to(device)
    keys = torch.randn(keys_a_group, head_dim, generator=generator).to(device)
    weights = torch.rand(num_queries, keys_a_group, generator=generator).to(device)
    results = [
        (_products(queries, keys.t(), tile_len * heads_per_kv), _products(weights, keys, tile_len * heads_per_kv))
        for tile_len in (SHORT_TILE_LEN, LONG_TILE_LEN)
    ]
    agree = all(torch.equal(short, long) for short, long in zip(*results, strict=True))
    return TileLens(LONG_TILE_LEN if agree else SHORT_TILE_LEN)


def _products(left: torch.Tensor, right: torch.Tensor, size: int) -> torch.Tensor:
    """`left @ right` in tiles of `size` rows, as attention computes them: added to what is there."""
    tiles = left.view(-1, size, left.shape[1])
    start = torch.ones(len(tiles), size, right.shape[1], device=left.device)
    return torch.baddbmm(start, tiles, right.expand(len(tiles), *right.shape)).view(left.shape[0], -1)
