"""The first and the last op of a step, by every implementation of the ops."""

import pytest
import torch

from shared.engine.native_ops import NativeOps
from shared.engine.ops import AttentionSpec, HeadBuffers, Ops
from shared.engine.torch_ops import TorchOps
from tests.kernel_libraries import emulated_library, native_library

HIDDEN, VOCAB, EPS = 64, 40, 1e-5


@pytest.fixture(params=["torch", "native", "avx512_emulated"])
def ops(request: pytest.FixtureRequest) -> Ops:
    match request.param:
        case "native":
            return NativeOps(native_library())
        case "avx512_emulated":
            cache: pytest.Cache = request.config.cache
            return NativeOps(emulated_library(cache.mkdir("kernels")))
    return TorchOps(torch.float32)


def spec() -> AttentionSpec:
    return AttentionSpec(
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        block_size=32,
        rope_table=torch.zeros(64, 32),
        pool=torch.zeros(2, 1, 2, 1, 32 * 32, dtype=torch.bfloat16),
    )


def table(ops: Ops) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(VOCAB, HIDDEN, generator=generator).to(ops.weight_dtype)


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 33])
def test_tokens_get_their_embeddings_and_vectors_stay(ops: Ops, num_tokens: int) -> None:
    token_ids = torch.arange(num_tokens) * 7 % VOCAB
    token_ids[num_tokens // 2] = -1
    out = torch.full((num_tokens, HIDDEN), 5.0)
    expected = table(ops)[token_ids].float()
    expected[num_tokens // 2] = 5.0
    weights = table(ops)
    kernels = ops.kernels(spec(), num_tokens)

    kernels.embed(token_ids, weights, out)

    assert torch.equal(out, expected)


@pytest.mark.parametrize("logit_tokens", [[], [0], [4], [1, 2, 4], [0, 1, 2, 3, 4]])
def test_head_takes_the_wanted_tokens_in_order(ops: Ops, logit_tokens: list[int]) -> None:
    lm_head = ops.pack(table(ops))
    kernels = ops.kernels(spec(), 5)
    hidden = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    norm = torch.rand(HIDDEN, generator=torch.Generator().manual_seed(2))
    memory = HeadBuffers(
        hidden=torch.zeros(16, HIDDEN),
        normed=torch.zeros(16, HIDDEN, dtype=ops.activation_dtype),
        logits=torch.full((16, VOCAB), 7.0),
    )

    kernels.head(hidden, torch.tensor(logit_tokens, dtype=torch.int64), norm, EPS, lm_head, memory)

    wanted = hidden[logit_tokens]
    normed = wanted * (wanted.square().mean(dim=1, keepdim=True) + EPS).rsqrt() * norm
    expected = normed @ table(ops).float().T
    tolerance = 1e-4 if ops.activation_dtype == torch.float32 else 3e-2
    torch.testing.assert_close(memory.logits[: len(logit_tokens)], expected, atol=tolerance * 10, rtol=tolerance)
