import numpy as np
import pytest
import torch

from shared.engine.ops import AttentionSpec, PackedStep
from shared.engine.tiling import (
    LONG_TILE_LEN,
    MOST_POSITIONS_A_BATCH,
    MOST_TILES_A_BATCH,
    SHORT_TILE_LEN,
    TileLens,
    group_len,
    most_positions,
    plan_tiles,
)

BOTH = TileLens(LONG_TILE_LEN)
NUM_LAYERS, NUM_KV_HEADS, NUM_HEADS, HEAD_DIM = 3, 2, 4, 8
POOL_ROWS_A_BLOCK = NUM_LAYERS * 2 * NUM_KV_HEADS


def make_spec(block_size: int = 32, num_blocks: int = 64) -> AttentionSpec:
    pool = torch.zeros(num_blocks, NUM_LAYERS, 2, NUM_KV_HEADS, block_size * HEAD_DIM)
    return AttentionSpec(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, block_size, torch.zeros(1, HEAD_DIM), pool)


def make_step(*spans: tuple[int, int]) -> PackedStep:
    """Rows with positions [start, end); row i's blocks are 10 * i + 1, 10 * i + 2, …"""
    lens = [end - start for start, end in spans]
    table = torch.arange(1, 11)[None] + 10 * torch.arange(len(spans))[:, None]
    positions = torch.cat([torch.arange(*span) for span in spans])
    return PackedStep(
        positions=positions,
        slots=positions,
        row_starts=torch.tensor(np.cumsum([0, *lens])),
        kv_lens=torch.tensor([end for _, end in spans]),
        block_table=table,
    )


@pytest.mark.parametrize(
    ("block_size", "keys"), [(1, 128), (8, 128), (16, 128), (32, 128), (64, 128), (256, 256), (20, 160), (24, 192)]
)
def test_groups_are_whole_blocks_and_whole_tiles(block_size: int, keys: int) -> None:
    assert group_len(block_size) == keys
    assert keys % block_size == 0
    assert keys % LONG_TILE_LEN == 0


def test_one_token_is_one_short_tile_with_its_own_keys() -> None:
    tiling = plan_tiles(make_spec(), make_step((130, 131)), BOTH)

    (batch,) = tiling.batches
    assert batch.tile_len == SHORT_TILE_LEN
    assert [group.num_tiles for group in batch.groups] == [1, 1]
    # Blocks 1 to 4 for each KV head, then block 5 and scratch blocks.
    first = [block * POOL_ROWS_A_BLOCK + head for head in range(2) for block in (1, 2, 3, 4)]
    second = [block * POOL_ROWS_A_BLOCK + head for head in range(2) for block in (5, 0, 0, 0)]
    assert batch.groups[0].blocks_index.tolist() == first
    assert batch.groups[1].blocks_index.tolist() == second
    # The tile begins at 128; position 130 is its third, and sees keys 128, 129 and 130 of the second group.
    assert len(batch.groups[0].is_later) == len(batch.groups[0].is_stale) == 0
    assert batch.groups[1].is_later[0, 2].logical_not().nonzero().flatten().tolist() == [0, 1, 2]


def test_what_lies_past_a_sequence_is_stale() -> None:
    tiling = plan_tiles(make_spec(), make_step((120, 131)), BOTH)

    # The tile at 120 ends in the first group and sees none past the sequence; the one at 128 has keys 128 to 130.
    stale = {
        group_index: [keys.nonzero().flatten().tolist() for keys in group.is_stale]
        for batch in tiling.batches
        for group_index, group in enumerate(batch.groups)
    }
    assert stale[1] == [list(range(3, 128))]
    assert all(keys == [] for keys in stale[0])


def test_queries_and_outputs_of_one_token() -> None:
    tiling = plan_tiles(make_spec(), make_step((130, 131)), BOTH)

    # qkv has 4 + 2 + 2 heads a token; the tile's other positions repeat the only token.
    assert tiling.batches[0].query_index.tolist() == [0, 1] * 4 + [2, 3] * 4
    # [KV head, position in the tile, head]: the third position of each KV head.
    assert tiling.output_index.tolist() == [4, 5, 8 + 4, 8 + 5]


def test_long_rows_are_cut_at_multiples_of_the_tile() -> None:
    tiling = plan_tiles(make_spec(), make_step((30, 70)), BOTH)

    (batch,) = tiling.batches
    assert batch.tile_len == LONG_TILE_LEN
    (group,) = batch.groups
    assert group.num_tiles == 3  # from 0, 32 and 64
    queries = batch.query_index.view(3, NUM_KV_HEADS, LONG_TILE_LEN, 2)
    tokens = queries[:, 0, :, 0] // 8
    assert tokens[0].tolist() == [0] * 31 + [1]  # positions 30 and 31 are tokens 0 and 1
    assert tokens[1].tolist() == list(range(2, 34))
    assert tokens[2].tolist() == [34, 35, 36, 37, 38, 39, *[39] * 26]


@pytest.mark.parametrize("lens", [BOTH, TileLens(SHORT_TILE_LEN)])
@pytest.mark.parametrize(
    "spans",
    [
        [(0, 1)],
        [(0, 300)],
        [(31, 33), (0, 16), (0, 17), (127, 129)],
        [(5, 6), (100, 250), (128, 129), (0, 40)],
        [(index, index + 1) for index in range(70)],
        [(31, 48)] * 5,
    ],
)
def test_every_token_has_one_place_that_holds_its_query(spans: list[tuple[int, int]], lens: TileLens) -> None:
    step = make_step(*spans)

    tiling = plan_tiles(make_spec(num_blocks=2000), step, lens)

    queries = torch.cat([batch.query_index for batch in tiling.batches])
    output_index = tiling.output_index.view(step.num_tokens, NUM_HEADS)
    heads = torch.arange(step.num_tokens)[:, None] * 8 + torch.arange(NUM_HEADS)
    assert torch.equal(queries[output_index], heads)
    assert len(queries) <= most_positions(step.num_tokens) * NUM_HEADS
    for batch in tiling.batches:
        assert len(batch.query_index) <= MOST_POSITIONS_A_BATCH * NUM_HEADS
        assert batch.groups[0].num_tiles <= MOST_TILES_A_BATCH


def test_tiles_with_more_groups_come_first() -> None:
    tiling = plan_tiles(make_spec(), make_step((5, 6), (300, 301), (130, 131)), BOTH)

    (batch,) = tiling.batches
    assert [group.num_tiles for group in batch.groups] == [3, 2, 1]
    assert [len(group.is_later) for group in batch.groups] == [1, 1, 1]
    heads_of_head_0 = batch.query_index.view(3, NUM_KV_HEADS, SHORT_TILE_LEN, 2)[:, 0, 0, 0]
    assert (heads_of_head_0 // 8).tolist() == [1, 2, 0]


def test_blocks_past_the_sequence_are_not_read() -> None:
    step = make_step((40, 41))
    step.block_table[0, 2:] = 10**9  # what stands there may be anything

    tiling = plan_tiles(make_spec(), step, BOTH)

    assert tiling.batches[0].groups[0].blocks_index.max() < 3 * POOL_ROWS_A_BLOCK
