"""int8 weights: what is made of a matrix, and products with it against plain arithmetic and bit for bit."""

import pytest
import torch

from shared.engine.kernels.library import KernelLibrary
from shared.engine.native_ops import NativeOps
from shared.engine.ops import AttentionSpec, Kernels, Ops
from shared.engine.quantize import Quantized, quantize
from shared.engine.torch_linear import ROW_MULTIPLE
from shared.engine.torch_ops import TorchOps
from tests.kernel_libraries import emulated_library, native_library

ROWS = (*range(1, 15), 23, 24, 25, 26, 48, 95, 96, 97, 120, 121, 192)
"""At and around the edges of tiles (6, 12), of blocks of rows (96), and of where weights are converted before (24)."""
MOST_ROWS = 192
INPUTS = (32, 96, 256, 288, 544)
"""At and around the k that are converted at a time (256)."""


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def spec() -> AttentionSpec:
    return AttentionSpec(
        num_heads=1,
        num_kv_heads=1,
        head_dim=32,
        block_size=32,
        rope_table=torch.zeros(1, 32),
        pool=torch.zeros(1, 1, 2, 1, 32 * 32, dtype=torch.bfloat16),
    )


@pytest.fixture(scope="module", params=["native", "avx512_emulated", "torch_float32", "torch_bfloat16"])
def ops(request: pytest.FixtureRequest) -> Ops:
    match request.param:
        case "native":
            return NativeOps(native_library(), "int8")
        case "avx512_emulated":
            cache: pytest.Cache = request.config.cache
            return NativeOps(emulated_library(cache.mkdir("kernels")), "int8")
        case "torch_float32":
            return TorchOps(torch.float32, "int8")
    return TorchOps(torch.bfloat16, "int8")


@pytest.fixture(scope="module")
def native(kernel_library: KernelLibrary) -> NativeOps:
    return NativeOps(kernel_library, "int8")


def kernels_of(ops: Ops) -> Kernels:
    return ops.kernels(spec(), MOST_ROWS)


def activations(ops: Ops, num_rows: int, num_inputs: int) -> torch.Tensor:
    """The first rows of one matrix, whatever their number, in a buffer as large as ops may want it."""
    return randn(MOST_ROWS + ROW_MULTIPLE, num_inputs, seed=1).to(ops.activation_dtype)[:num_rows]


def buffer_for(num_outputs: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((MOST_ROWS + ROW_MULTIPLE, num_outputs), 7.0, dtype=dtype)


def dequantized(weight: torch.Tensor) -> torch.Tensor:
    found = quantize(weight)
    return found.values.double() * found.scales.double()[:, None]


def multiplied(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.double() @ dequantized(weight).T


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert (found.double() - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1)


def tolerance_of(ops: Ops) -> float:
    """How exact sums are: bfloat16 activations are exact here, but plain torch rounds sums to the dtype."""
    return 1e-2 if isinstance(ops, TorchOps) and ops.weight_dtype == torch.bfloat16 else 1e-5


def quantized(rows: list[list[float]], dtype: torch.dtype = torch.float32) -> Quantized:
    return quantize(torch.tensor(rows, dtype=dtype))


def test_a_row_is_in_units_of_its_largest_value() -> None:
    found = quantized([[127.0, -1.0, 0.0, 63.4], [-254.0, 3.0, 2.0, 1.0], [1.5, 2.5, -0.5, -127.0]])
    assert found.values.tolist() == [[127, -1, 0, 63], [-127, 2, 1, 0], [2, 2, 0, -127]], "ties go to even"
    assert found.scales.tolist() == [1.0, 2.0, 1.0]
    assert found.values.dtype == torch.int8


def test_a_row_of_zeros_stays_one() -> None:
    found = quantized([[0.0, 0.0], [0.0, 1e-45]])
    assert found.values.tolist() == [[0, 0], [0, 0]]
    assert found.scales.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_weight_is_further_off_than_half_a_unit(dtype: torch.dtype) -> None:
    weight = randn(64, 96).to(dtype)
    found = quantize(weight)
    assert found.values.abs().amax(1).eq(127).all()
    errors = (dequantized(weight) - weight.double()).abs()
    assert (errors <= 0.5001 * found.scales.double()[:, None]).all()


@pytest.mark.parametrize("num_inputs", INPUTS)
@pytest.mark.parametrize("num_outputs", [8, 31, 32, 40, 96])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(ops: Ops, num_inputs: int, num_outputs: int, has_bias: bool) -> None:
    weight = randn(num_outputs, num_inputs, seed=2)
    bias = randn(num_outputs, seed=3) if has_bias else None
    packed, kernels = ops.pack(weight, bias), kernels_of(ops)
    for num_rows in ROWS:
        x, out = activations(ops, num_rows, num_inputs), buffer_for(num_outputs)
        kernels.linear(x, packed, out[:num_rows])
        expected = multiplied(x, weight)
        close(out[:num_rows], expected if bias is None else expected + bias, tolerance_of(ops))


def test_nothing_is_written_behind_the_rows(native: NativeOps) -> None:
    packed, kernels = native.pack(randn(40, 64)), kernels_of(native)
    for num_rows in ROWS:
        out = buffer_for(40)
        kernels.linear(activations(native, num_rows, 64), packed, out[:num_rows])
        assert out[num_rows:].eq(7).all()


@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_add(ops: Ops, has_bias: bool) -> None:
    weight, bias = randn(96, 288, seed=2), randn(96, seed=3) if has_bias else None
    pair = ops.pack_gate_up(weight, weight)  # plain torch sizes its work space by the pair
    packed, kernels = ops.pack(weight, bias), kernels_of(ops)
    assert pair.num_outputs == packed.num_outputs
    for num_rows in ROWS:
        x, residual = activations(ops, num_rows, 288), randn(MOST_ROWS + ROW_MULTIPLE, 96)
        expected = residual[:num_rows] + multiplied(x, weight) + (0 if bias is None else bias)
        kernels.linear_add(x, packed, residual[:num_rows])
        close(residual[:num_rows], expected, tolerance_of(ops))


@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_silu(ops: Ops, has_bias: bool) -> None:
    gate, up = randn(96, 288, seed=2) / 8, randn(96, 288, seed=3) / 8
    biases = (randn(96, seed=4), randn(96, seed=5)) if has_bias else (None, None)
    pair = ops.pack_gate_up(gate, up, *biases)
    kernels = kernels_of(ops)
    for num_rows in ROWS:
        x, out = activations(ops, num_rows, 288), buffer_for(96, ops.activation_dtype)
        kernels.linear_silu(x, pair, out[:num_rows])
        gated, upped = multiplied(x, gate), multiplied(x, up)
        if biases[0] is not None and biases[1] is not None:
            gated, upped = gated + biases[0], upped + biases[1]
        rounding = 0 if ops.activation_dtype == torch.float32 else 2**-8
        close(out[:num_rows], gated.sigmoid() * gated * upped, 2 * tolerance_of(ops) + rounding)


@pytest.mark.parametrize("num_inputs", INPUTS)
def test_a_row_has_the_same_bits_among_any_number_of_rows(native: NativeOps, num_inputs: int) -> None:
    """Few rows convert weights as they multiply, many have them converted before: nobody can tell from the result."""
    weight, bias = randn(72, num_inputs, seed=2), randn(72, seed=3)
    packed, kernels = native.pack(weight, bias), kernels_of(native)
    pair = native.pack_gate_up(weight[:64], randn(64, num_inputs, seed=4))
    alone, alone_inner = buffer_for(72), buffer_for(64, native.activation_dtype)
    x = activations(native, MOST_ROWS, num_inputs)
    for row in range(MOST_ROWS):
        kernels.linear(x[row : row + 1], packed, alone[row : row + 1])
        kernels.linear_silu(x[row : row + 1], pair, alone_inner[row : row + 1])
    for num_rows in (*ROWS, *range(20, 30)):
        out, inner = buffer_for(72), buffer_for(64, native.activation_dtype)
        kernels.linear(x[:num_rows], packed, out[:num_rows])
        kernels.linear_silu(x[:num_rows], pair, inner[:num_rows])
        assert torch.equal(out[:num_rows], alone[:num_rows])
        assert torch.equal(inner[:num_rows], alone_inner[:num_rows])


@pytest.mark.parametrize("num_rows", [1, 24, 25])
def test_every_value_is_multiplied_exactly(native: NativeOps, num_rows: int) -> None:
    """All of -127 to 127, against inputs that pick one weight each."""
    values = torch.arange(-127, 128).repeat(33)[: 32 * 256].view(32, 256).float()
    values[:, 0] = 127  # the scale is 1
    packed, kernels = native.pack(values), kernels_of(native)
    picked = torch.zeros(256)
    for first in range(0, 256, num_rows):
        count = min(num_rows, 256 - first)
        x = torch.eye(256)[first : first + count].to(native.activation_dtype).contiguous()
        out = torch.zeros(count, 32)
        kernels.linear(x, packed, out)
        assert torch.equal(out, values.T[first : first + count])
        picked[first : first + count] = 1
    assert picked.all()


def test_packed_weights_take_a_byte_each_and_a_scale_for_each_output(native: NativeOps) -> None:
    packed = native.pack(randn(40, 96))
    assert (packed.data.dtype, packed.data.numel()) == (torch.int8, 64 * 96)
    assert packed.scales is not None
    assert packed.scales.shape == (64,)
    assert (packed.num_inputs, packed.num_outputs) == (96, 40)
