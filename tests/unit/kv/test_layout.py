from dataclasses import replace

import pytest
import torch

from shared.errors import ConfigError
from shared.kv.dtypes import torch_dtype
from shared.kv.layout import KvLayout

SMOLLM2 = KvLayout("token_major", "bfloat16", block_size=32, num_layers=30, num_kv_heads=3, head_dim=64)


def test_block_shape_and_bytes_of_a_known_model() -> None:
    assert SMOLLM2.block_shape == (30, 2, 3, 2048)
    assert SMOLLM2.block_bytes == 30 * 2 * 3 * 32 * 64 * 2
    assert replace(SMOLLM2, dtype="float32").block_bytes == 2 * SMOLLM2.block_bytes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "gemm_panels"),
        ("dtype", "float32"),
        ("block_size", 16),
        ("num_layers", 31),
        ("num_kv_heads", 1),
        ("head_dim", 128),
    ],
)
def test_difference_names_each_field_and_both_values(field: str, value: str | int) -> None:
    other = replace(SMOLLM2, **{field: value})  # type: ignore[arg-type]  # the field's own type
    assert SMOLLM2.difference(other) == (field, str(getattr(SMOLLM2, field)), str(value))
    assert SMOLLM2.digest() != other.digest()


def test_equal_layouts_have_no_difference() -> None:
    assert SMOLLM2.difference(replace(SMOLLM2)) is None
    assert SMOLLM2.digest() == replace(SMOLLM2).digest()
    assert len(SMOLLM2.digest()) == 32


def test_a_peers_unknown_dtype_can_be_compared_but_has_no_size() -> None:
    foreign = replace(SMOLLM2, dtype="float8")
    assert SMOLLM2.difference(foreign) == ("dtype", "bfloat16", "float8")
    with pytest.raises(ConfigError, match="'float8' is not served; use one of float32, bfloat16"):
        _ = foreign.block_bytes


def test_torch_dtypes() -> None:
    assert torch_dtype("float32") is torch.float32
    assert torch_dtype("bfloat16") is torch.bfloat16
