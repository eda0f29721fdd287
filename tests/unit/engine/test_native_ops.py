"""Each native op against plain arithmetic, at and around every tile, block and head edge."""

import pytest
import torch

from shared.engine.kernels.library import KernelLibrary
from shared.engine.native_ops import NativeKernels, NativeOps
from shared.engine.ops import AttentionSpec, HeadNorms, PackedStep

EPS = 1e-5
BLOCK_SIZE = 32
ROWS = (1, 2, 3, 5, 6, 7, 11, 12, 13, 24, 25, 95, 96, 97, 200)


@pytest.fixture(scope="module")
def ops(kernel_library: KernelLibrary) -> NativeOps:
    return NativeOps(kernel_library)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def spec(num_heads: int = 3, num_kv_heads: int = 1, head_dim: int = 32, num_blocks: int = 40) -> AttentionSpec:
    angles = torch.arange(1200)[:, None] / 10000 ** (torch.arange(head_dim // 2) / (head_dim // 2))
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=BLOCK_SIZE,
        rope_table=torch.cat([angles.cos(), angles.sin()], dim=1),
        pool=torch.full((num_blocks, 2, 2, num_kv_heads, BLOCK_SIZE * head_dim), float("nan"), dtype=torch.bfloat16),
    )


def as_float(weight: torch.Tensor) -> torch.Tensor:
    """A weight as the kernels see it."""
    return weight.bfloat16().float()


def close(found: torch.Tensor, expected: torch.Tensor, ops: NativeOps) -> None:
    tolerance = 1e-4 if ops.activation_dtype == torch.float32 else 3e-2
    scale = expected.abs().max().clamp(min=1)
    assert (found.float() - expected).abs().max() <= tolerance * scale


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("num_outputs", [8, 31, 32, 40, 64, 96, 272])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(ops: NativeOps, num_rows: int, num_outputs: int, has_bias: bool) -> None:
    x, weight = randn(num_rows, 96, seed=1).to(ops.activation_dtype), randn(num_outputs, 96, seed=2)
    bias = randn(num_outputs, seed=3) if has_bias else None
    out = torch.full((num_rows + 1, num_outputs), 7.0)
    ops.kernels(spec(), 1).linear(x, ops.pack(weight, bias), out[:num_rows])
    expected = x.float() @ as_float(weight).T
    close(out[:num_rows], expected if bias is None else expected + bias, ops)
    assert out[num_rows].eq(7).all(), "nothing is written behind the rows"


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_add(ops: NativeOps, num_rows: int, has_bias: bool) -> None:
    x, weight, residual = randn(num_rows, 64, seed=1).to(ops.activation_dtype), randn(96, 64), randn(num_rows, 96)
    bias = randn(96, seed=3) if has_bias else None
    expected = residual + x.float() @ as_float(weight).T + (0 if bias is None else bias)
    ops.kernels(spec(), 1).linear_add(x, ops.pack(weight, bias), residual)
    close(residual, expected, ops)


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_silu(ops: NativeOps, num_rows: int, has_bias: bool) -> None:
    x, gate, up = randn(num_rows, 64, seed=1).to(ops.activation_dtype), randn(96, 64, seed=2), randn(96, 64, seed=3)
    biases = (randn(96, seed=4), randn(96, seed=5)) if has_bias else (None, None)
    out = torch.zeros(num_rows, 96, dtype=ops.activation_dtype)
    ops.kernels(spec(), 1).linear_silu(x, ops.pack_gate_up(gate, up, *biases), out)
    gated, upped = x.float() @ as_float(gate).T, x.float() @ as_float(up).T
    if biases[0] is not None and biases[1] is not None:
        gated, upped = gated + biases[0], upped + biases[1]
    close(out, torch.nn.functional.silu(gated) * upped, ops)


def test_silu_of_large_values_is_no_nan(ops: NativeOps) -> None:
    gate = torch.tensor([-1e30, -100.0, -20.0, 0.0, 20.0, 100.0, 1e30, 88.0] * 4)
    x = torch.ones(1, 2, dtype=ops.activation_dtype)
    weight = ops.pack_gate_up(torch.stack([gate, torch.zeros(32)], dim=1), torch.ones(32, 2) / 2)
    out = torch.zeros(1, 32, dtype=ops.activation_dtype)
    ops.kernels(spec(), 1).linear_silu(x, weight, out)
    close(out[0, 1:6], torch.nn.functional.silu(as_float(gate))[1:6], ops)
    assert out.isfinite().all()


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("size", [32, 64, 576])
def test_rmsnorm(ops: NativeOps, num_rows: int, size: int) -> None:
    x, weight = randn(num_rows, size) * 3, randn(size, seed=1)
    out = torch.zeros(num_rows, size, dtype=ops.activation_dtype)
    ops.kernels(spec(), 1).rmsnorm(x, weight, EPS, out)
    close(out, x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight, ops)


def pack_step(rows: list[tuple[int, int]]) -> PackedStep:
    """Rows as (start, kv_len); each has blocks of its own, in falling order."""
    positions: list[int] = []
    slots: list[int] = []
    tables: list[list[int]] = []
    row_starts = [0]
    next_block = 1
    for start, kv_len in rows:
        num_blocks = -(-kv_len // BLOCK_SIZE)
        table = list(range(next_block, next_block + num_blocks))[::-1]
        next_block += num_blocks
        tables.append(table)
        positions += range(start, kv_len)
        slots += [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, kv_len)]
        row_starts.append(len(positions))
    width = max(map(len, tables))
    return PackedStep(
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        row_starts=torch.tensor(row_starts),
        kv_lens=torch.tensor([kv_len for _, kv_len in rows]),
        block_table=torch.tensor([[*table, *[10**9] * (width - len(table))] for table in tables]),
    )


def rotated(heads: torch.Tensor, positions: torch.Tensor, used: AttentionSpec) -> torch.Tensor:
    """[tokens, heads, head_dim], rotated."""
    cos, sin = used.rope_table[positions].chunk(2, dim=1)
    first, second = heads.chunk(2, dim=2)
    return torch.cat([first * cos[:, None] - second * sin[:, None], second * cos[:, None] + first * sin[:, None]], 2)


def normed(heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return heads / (heads.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


@pytest.mark.parametrize("shape", [(3, 1, 32), (9, 3, 64), (2, 2, 96), (6, 1, 32), (4, 2, 128)])
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("kv_len", [1, 2, 31, 32, 33, 63, 64, 65, 200, 511, 512, 513, 530, 1025])
def test_attention_over_chunks(ops: NativeOps, shape: tuple[int, int, int], has_norms: bool, kv_len: int) -> None:
    check_attention(ops, shape, has_norms, kv_len)


@pytest.mark.parametrize("heads_a_kv", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 16])
@pytest.mark.parametrize("kv_len", [1, 40, 530])
def test_attention_of_any_number_of_query_heads_a_kv_head(ops: NativeOps, heads_a_kv: int, kv_len: int) -> None:
    check_attention(ops, (2 * heads_a_kv, 2, 32), False, kv_len)


def check_attention(ops: NativeOps, shape: tuple[int, int, int], has_norms: bool, kv_len: int) -> None:
    """A sequence in one chunk, and in chunks beside another sequence, against softmax over everything."""
    used = spec(*shape, num_blocks=80)
    heads, kv_heads, dim = shape
    qkv = (randn(kv_len, (heads + 2 * kv_heads) * dim)).to(ops.activation_dtype)
    query_norm, key_norm = randn(dim, seed=7), randn(dim, seed=8)
    norms = HeadNorms(query_norm, key_norm, EPS) if has_norms else None
    split = qkv.float().view(kv_len, -1, dim)
    queries, keys, values = split[:, :heads], split[:, heads : heads + kv_heads], split[:, heads + kv_heads :]
    if has_norms:
        queries, keys = normed(queries, query_norm), normed(keys, key_norm)
    positions = torch.arange(kv_len)
    queries, keys = rotated(queries, positions, used), as_float(rotated(keys, positions, used))
    scores = torch.einsum("qhd,khd->hqk", queries, keys.repeat_interleave(heads // kv_heads, 1)) * dim**-0.5
    scores.masked_fill_(positions[:, None] < positions, -torch.inf)
    expected = torch.einsum(
        "hqk,khd->qhd", scores.softmax(-1), as_float(values).repeat_interleave(heads // kv_heads, 1)
    )

    def run(chunk_lens: list[int]) -> torch.Tensor:
        used.pool.fill_(float("nan"))
        kernels, outputs, start = ops.kernels(used, 1), [], 0
        for length in chunk_lens:
            step = pack_step([(start, start + length), (0, 5)])
            other = randn(5, qkv.shape[1], seed=start).to(ops.activation_dtype)
            both = torch.cat([qkv[start : start + length], other])
            out = torch.zeros(length + 5, heads * dim, dtype=ops.activation_dtype)
            # The first row's blocks must be the same in every step.
            fixed = torch.arange(-(-kv_len // BLOCK_SIZE)) + 3
            step = pack_fixed(step, fixed, start, length)
            kernels.begin_step(step)
            kernels.rope_and_write(both, 1, norms)
            kernels.attention(both, 1, out)
            outputs.append(out[:length])
            start += length
        return torch.cat(outputs)

    whole = run([kv_len])
    close(whole, expected.reshape(kv_len, -1), ops)
    for chunk_lens in ([1] * min(kv_len, 3) + [kv_len - 3], [kv_len // 2, kv_len - kv_len // 2]):
        lens = [length for length in chunk_lens if length > 0]
        if sum(lens) == kv_len:
            assert torch.equal(run(lens), whole)


def pack_fixed(step: PackedStep, blocks: torch.Tensor, start: int, length: int) -> PackedStep:
    """The step with these blocks for its first row, and blocks 1 for the second."""
    positions = torch.arange(start, start + length)
    slots = torch.cat([blocks[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE, 32 + torch.arange(5)])
    table = torch.ones(2, len(blocks), dtype=torch.int64)
    table[0] = blocks
    return PackedStep(step.positions, slots, step.row_starts, step.kv_lens, table)


def test_a_program_does_what_its_calls_do(ops: NativeOps) -> None:
    x, residual, normed_x = randn(8, 64), randn(8, 64, seed=1), torch.zeros(8, 64, dtype=ops.activation_dtype)
    weight, norm = ops.pack(randn(64, 64, seed=2)), randn(64, seed=3)
    used = spec()
    kernels = ops.kernels(used, 8)
    assert isinstance(kernels, NativeKernels)

    def layers(any_kernels: object) -> None:
        assert isinstance(any_kernels, NativeKernels)
        any_kernels.rmsnorm(x, norm, EPS, normed_x)
        any_kernels.linear_add(normed_x, weight, residual)

    before = residual.clone()
    program = kernels.program(layers)
    assert torch.equal(residual, before), "noted, not done"
    kernels.begin_step(pack_step([(0, 5)]))
    program()
    after = before.clone()
    kernels.rmsnorm(x[:5], norm, EPS, normed_x[:5])
    kernels.linear_add(normed_x[:5], weight, after[:5])
    assert torch.equal(residual, after), "the step's five tokens, and no more"
