"""The ops in plain torch against naive float64 references."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from shared.engine.ops import AttentionSpec, HeadNorms, Kernels, PackedStep
from shared.engine.torch_ops import TorchOps

MAX_LEN, NUM_LAYERS = 600, 2


@dataclass(frozen=True)
class Heads:
    """Shape of attention: query heads, KV heads, values a head."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class Bench:
    """Kernels over a random pool, and naive answers from what was put there."""

    def __init__(self, heads: Heads, block_size: int = 32, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        num_blocks = 80 * 32 // block_size
        shape = (num_blocks, NUM_LAYERS, 2, heads.num_kv_heads, block_size * heads.head_dim)
        angles = torch.arange(MAX_LEN)[:, None] * torch.rand(heads.head_dim // 2, generator=self.generator)
        self.spec = AttentionSpec(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            block_size=block_size,
            rope_table=torch.cat([angles.cos(), angles.sin()], dim=-1),
            pool=torch.randn(shape, generator=self.generator).to(dtype),
        )
        self.kernels: Kernels = TorchOps(dtype).kernels(self.spec, 640)

    def step(self, *spans: tuple[int, int]) -> PackedStep:
        """Rows with positions [start, end) and blocks in random order, none of them shared, nor block 0."""
        block_size = self.spec.block_size
        lens = [end - start for start, end in spans]
        counts = [-(-end // block_size) for _, end in spans]
        order = 1 + torch.randperm(self.spec.pool.shape[0] - 1, generator=self.generator)
        table = torch.zeros(len(spans), max(counts), dtype=torch.int64)
        for index, ids in enumerate(torch.split(order[: sum(counts)], counts)):
            table[index, : len(ids)] = ids
        positions = torch.cat([torch.arange(*span) for span in spans])
        rows = torch.repeat_interleave(torch.arange(len(spans)), torch.tensor(lens))
        slots = table[rows, positions // block_size] * block_size + positions % block_size
        starts = torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()])
        return PackedStep(positions, slots, starts, torch.tensor([end for _, end in spans]), table)

    def qkv(self, num_tokens: int) -> torch.Tensor:
        return torch.randn(num_tokens, self.spec.qkv_len, generator=self.generator)

    def cached(self, layer: int, kind: int, step: PackedStep, row: int) -> torch.Tensor:
        """[KV heads, kv_len, head_dim]: keys (0) or values (1) of a row, token by token."""
        spec = self.spec
        blocks = spec.pool[step.block_table[row], layer, kind].double()
        tokens = blocks.view(len(blocks), spec.num_kv_heads, spec.block_size, spec.head_dim)
        return tokens.transpose(0, 1).reshape(spec.num_kv_heads, -1, spec.head_dim)[:, : int(step.kv_lens[row])]

    def naive_attention(self, qkv: torch.Tensor, layer: int, step: PackedStep) -> torch.Tensor:
        spec = self.spec
        group = spec.num_heads // spec.num_kv_heads
        out = []
        for row, (start, end) in enumerate(pairwise(step.row_starts.tolist())):
            keys = self.cached(layer, 0, step, row).repeat_interleave(group, 0)
            values = self.cached(layer, 1, step, row).repeat_interleave(group, 0)
            for token in range(start, end):
                position = int(step.positions[token])
                query = qkv[token, : spec.query_len].double().view(spec.num_heads, 1, spec.head_dim)
                scores = (query * keys[:, : position + 1]).sum(-1) * spec.head_dim**-0.5
                out.append((scores.softmax(-1)[..., None] * values[:, : position + 1]).sum(1).flatten())
        return torch.stack(out)


HEADS = [Heads(3, 1, 16), Heads(4, 4, 8), Heads(6, 2, 32), Heads(8, 2, 64)]
STEPS = [
    [(0, 1)],
    [(127, 128)],
    [(128, 129)],
    [(0, 33)],
    [(31, 130), (0, 5), (511, 512), (256, 257)],
    [(0, 300), (100, 117), (4, 5)],
    [(index, index + 1) for index in range(40)],
]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("spans", STEPS, ids=str)
def test_attention_is_right_around_edges_of_tiles_blocks_and_groups(heads: Heads, spans: list[tuple[int, int]]) -> None:
    bench = Bench(heads)
    step = bench.step(*spans)
    qkv = bench.qkv(step.num_tokens)
    out = torch.zeros(step.num_tokens, bench.spec.query_len)

    bench.kernels.begin_step(step)
    bench.kernels.attention(qkv, 1, out)

    assert torch.allclose(out.double(), bench.naive_attention(qkv, 1, step), atol=2e-5)


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 64, 256])
def test_attention_with_other_block_sizes(block_size: int) -> None:
    bench = Bench(Heads(6, 2, 16), block_size)
    step = bench.step((100, 260), (0, 3), (159, 160), (160, 161))
    qkv = bench.qkv(step.num_tokens)
    out = torch.zeros(step.num_tokens, bench.spec.query_len)

    bench.kernels.begin_step(step)
    bench.kernels.attention(qkv, 0, out)

    assert torch.allclose(out.double(), bench.naive_attention(qkv, 0, step), atol=2e-5)


def test_attention_over_bfloat16_kv() -> None:
    bench = Bench(Heads(6, 2, 16), dtype=torch.bfloat16)
    step = bench.step((100, 260), (0, 3))
    qkv = bench.qkv(step.num_tokens)
    out = torch.zeros(step.num_tokens, bench.spec.query_len)

    bench.kernels.begin_step(step)
    bench.kernels.attention(qkv, 0, out)

    assert torch.allclose(out.double(), bench.naive_attention(qkv, 0, step), atol=2e-5)


def test_keys_later_than_the_query_do_not_matter() -> None:
    bench = Bench(Heads(6, 2, 16))
    step = bench.step((70, 130))
    qkv = bench.qkv(step.num_tokens)
    before, after = torch.zeros(2, step.num_tokens, bench.spec.query_len)
    bench.kernels.begin_step(step)
    bench.kernels.attention(qkv, 0, before)

    keys = bench.spec.pool[step.block_table[0, 3], 0, 0].view(2, 32, 16)
    keys[:, 100 - 96 :] = 77.0  # positions from 100 on
    bench.kernels.attention(qkv, 0, after)

    assert torch.equal(before[:30], after[:30])
    assert not torch.equal(before[30], after[30])


def test_large_scores_do_not_overflow() -> None:
    bench = Bench(Heads(4, 4, 8))
    step = bench.step((299, 300))
    qkv = bench.qkv(1) * 1e4
    out = torch.zeros(1, bench.spec.query_len)

    bench.kernels.begin_step(step)
    bench.kernels.attention(qkv, 0, out)

    assert torch.allclose(out.double(), bench.naive_attention(qkv, 0, step), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rope_rotates_and_writes_where_the_slots_say(dtype: torch.dtype) -> None:
    bench = Bench(Heads(6, 2, 16), dtype=dtype)
    spec, step = bench.spec, bench.step((30, 35), (0, 1))
    before, qkv = spec.pool.clone(), bench.qkv(6)
    original = qkv.clone()

    bench.kernels.begin_step(step)
    bench.kernels.rope_and_write(qkv, 1, None)

    heads = original.view(6, 10, 16)
    cos, sin = spec.rope_table[step.positions].view(6, 1, 2, 8).unbind(2)
    first, second = heads[:, :8, :8], heads[:, :8, 8:]
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    assert torch.allclose(qkv.view(6, 10, 16)[:, :8], rotated, atol=1e-6)
    assert torch.equal(qkv.view(6, 10, 16)[:, 8:], heads[:, 8:])
    expected = before.view(-1, NUM_LAYERS, 2, 2, 32, 16).clone()
    block, offset = step.slots // 32, step.slots % 32
    for token in range(6):
        place = expected[block[token], 1, :, :, offset[token]]
        place[0], place[1] = qkv.view(6, 10, 16)[token, 6:8], heads[token, 8:]
    assert torch.equal(spec.pool, expected.view_as(spec.pool))


def test_heads_are_normed_before_they_are_rotated() -> None:
    bench = Bench(Heads(2, 1, 4))
    step = bench.step((0, 1))  # position 0: no rotation
    qkv = torch.tensor([[3.0, 4.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 2.0, 0.0, 0.0, 9.0, 9.0, 9.0, 9.0]])
    norms = HeadNorms(torch.tensor([1.0, 2.0, 1.0, 1.0]), torch.tensor([1.0, 10.0, 1.0, 1.0]), eps=0.0)

    bench.kernels.begin_step(step)
    bench.kernels.rope_and_write(qkv, 0, norms)

    # Root mean squares are 2.5, 1 and 1.
    expected = [1.2, 3.2, 0, 0, 1, 2, 1, 1, 0, 20, 0, 0, 9, 9, 9, 9]
    assert qkv[0].tolist() == pytest.approx(expected)


def test_rmsnorm_by_hand() -> None:
    kernels = Bench(Heads(4, 4, 8)).kernels
    x, out = torch.zeros(16, 2), torch.zeros(16, 2)
    x[0], x[1] = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 0.0])

    kernels.rmsnorm(x[:2], torch.tensor([1.0, 2.0]), 12.5, out[:2])

    # mean(9, 16) + 12.5 = 25
    assert out[0].tolist() == pytest.approx([3 / 5, 2 * 4 / 5])
    assert out[1].tolist() == [0, 0]


@pytest.mark.parametrize("num_rows", [1, 5, 16, 150])
def test_linear_silu_and_add(num_rows: int) -> None:
    generator = torch.Generator().manual_seed(3)
    ops = TorchOps(torch.float32)
    gate, up, down = (torch.randn(shape, generator=generator) for shape in ((24, 16), (24, 16), (16, 24)))
    gate_bias, up_bias, down_bias = (torch.randn(size, generator=generator) for size in (24, 24, 16))
    pair, last = ops.pack_gate_up(gate, up, gate_bias, up_bias), ops.pack(down, down_bias)
    kernels = ops.kernels(Bench(Heads(4, 4, 8)).spec, 160)
    x, inner = torch.randn(160, 16, generator=generator), torch.zeros(160, 24)
    residual = torch.randn(160, 16, generator=generator)
    before = residual.clone()

    kernels.linear_silu(x[:num_rows], pair, inner[:num_rows])
    kernels.linear_add(inner[:num_rows], last, residual[:num_rows])

    part = x[:num_rows].double()
    gated = part @ gate.double().t() + gate_bias
    expected_inner = gated * torch.sigmoid(gated) * (part @ up.double().t() + up_bias)
    assert (pair.num_inputs, pair.num_outputs) == (16, 24)
    assert torch.allclose(inner[:num_rows].double(), expected_inner, atol=1e-4)
    expected = before[:num_rows] + expected_inner @ down.double().t() + down_bias
    assert torch.allclose(residual[:num_rows].double(), expected, atol=1e-3)
    assert torch.equal(residual[num_rows:], before[num_rows:])
