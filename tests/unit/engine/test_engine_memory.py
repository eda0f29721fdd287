"""Bytes that are told from a config against those that a real runner holds."""

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch

from shared.config.resolve import ResolvedWalk
from shared.engine.memory import kv_pool_bytes, step_bytes, step_bytes_bound
from shared.engine.models.config import read_config
from shared.engine.runner import Runner, load_model
from shared.errors import ModelLoadError
from shared.kv.pool import KvPool
from shared.ladder import Ladder
from tests.kernel_libraries import native_library
from tests.tiny_models import write_tiny_model

TOKENS, ROWS = Ladder((32, 100)), Ladder((1, 4))
LADDERS = {
    "prefill": [ResolvedWalk("prefill", "prefill_text", 100, TOKENS)],
    "decode": [ResolvedWalk("decode", "decode", None, ROWS), ResolvedWalk("decode", "mixed", None, TOKENS)],
    "rows alone": [ResolvedWalk("decode", "decode", None, ROWS)],
    "no rungs": [ResolvedWalk("prefill", "prefill_text", None, Ladder(()))],
}


def held_tensors(owner: object) -> Iterator[torch.Tensor]:
    """All tensors that can be reached from an object, as the garbage collector sees them."""
    seen, waiting = {id(owner)}, [owner]
    while waiting:
        found = waiting.pop()
        if isinstance(found, torch.Tensor):
            yield found
            continue
        for other in gc.get_referents(found):
            if id(other) not in seen and not isinstance(other, type | ModuleType | FunctionType):
                seen.add(id(other))
                waiting.append(other)


def held_bytes(runner: Runner, *, besides: Sequence[torch.Tensor]) -> int:
    """Bytes of the storages that a runner holds, told apart by where they lie."""
    bytes_at = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held_tensors(runner)
    }
    for tensor in besides:
        bytes_at.pop(tensor.untyped_storage().data_ptr())
    return sum(bytes_at.values())


@pytest.mark.parametrize("ladders", LADDERS)
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize(("family", "dtype"), [("llama", "float32"), ("qwen3", "bfloat16"), ("qwen2", "float32")])
def test_bytes_are_those_that_a_runner_holds(
    tmp_path: Path, ladders: str, block_size: int, family: str, dtype: str
) -> None:
    directory, walks = write_tiny_model(tmp_path, family), LADDERS[ladders]
    model = load_model(directory, dtype, max_model_len=500)
    pool = KvPool.anonymous(model.kv_layout(block_size), 3, "epoch")
    runner = Runner(model, pool, walks, max_num_rows=6)

    expected = held_bytes(runner, besides=[pool.tensor, *held_tensors_of_weights(model.weights)])

    found = step_bytes(read_config(directory).limited_to(500), dtype, walks, 6, block_size)
    assert found.total == expected
    assert found.total == found.inputs + found.activations + found.kernels + found.head + found.rope_table


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_int8_weights_change_none_of_them(tmp_path: Path, kernels: str) -> None:
    if kernels == "native":
        native_library()
    directory, walks = write_tiny_model(tmp_path, head_dim=32), LADDERS["decode"]
    model = load_model(directory, "bfloat16", kernels=kernels, weights="int8")
    pool = KvPool.anonymous(model.kv_layout(32), 3, "epoch")
    runner = Runner(model, pool, walks, max_num_rows=6)

    expected = held_bytes(runner, besides=[pool.tensor, *held_tensors_of_weights(model.weights)])

    assert step_bytes(read_config(directory), "bfloat16", walks, 6, 32, kernels=kernels).total == expected


def held_tensors_of_weights(weights: object) -> list[torch.Tensor]:
    """One tensor for each storage."""
    return list({tensor.untyped_storage().data_ptr(): tensor for tensor in held_tensors(weights)}.values())


def test_parts_by_hand(tmp_path: Path) -> None:
    config = read_config(write_tiny_model(tmp_path)).limited_to(500)  # hidden 64, inner 96, 4 + 2 + 2 heads of 16

    found = step_bytes(config, "float32", LADDERS["prefill"], 6, 32)

    # 100 tokens: ids, positions, slots; 6 rows: starts, lengths, places of logits, 16 blocks each
    assert found.inputs == 8 * (3 * 100 + 7 + 6 + 6 + 6 * 16)
    # up to a multiple of 16 rows: hidden, normed, qkv, attended, inner
    assert found.activations == 4 * 112 * (64 + 64 + 128 + 64 + 96)
    assert found.head == 4 * 16 * (64 + 64 + 272)
    assert found.rope_table == 4 * 500 * 16


def test_walk_without_rungs_needs_the_head_alone(tmp_path: Path) -> None:
    config = read_config(write_tiny_model(tmp_path))

    found = step_bytes(config, "float32", LADDERS["no rungs"], 6, 32)

    assert (found.inputs, found.activations, found.kernels) == (0, 0, 0)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_pool_by_hand(tmp_path: Path, dtype: str, size: int) -> None:
    config = read_config(write_tiny_model(tmp_path))

    # One page of header, one of generations, then blocks: 2 layers, keys and values, 2 heads of 16, 32 tokens.
    assert kv_pool_bytes(config, dtype, 32, 10) == 4096 + 4096 + 10 * 2 * 2 * 2 * 16 * 32 * size


def test_dtype_that_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="float16"):
        step_bytes(read_config(write_tiny_model(tmp_path)), "float16", LADDERS["prefill"], 6, 32)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "kernels"), [("float32", "torch"), ("bfloat16", "torch"), ("auto", "auto")])
def test_the_bound_is_never_below_the_exact_figure(tmp_path: Path, model_type: str, dtype: str, kernels: str) -> None:
    config = read_config(write_tiny_model(tmp_path / model_type, model_type))
    for rungs in ((), (1,), (32, 512), (100_000,)):
        walks = [ResolvedWalk("prefill", "prefill_text", None, Ladder(rungs))]
        for max_num_rows in (1, 64, 5000):
            for block_size in (1, 8, 32, 512):
                exact = step_bytes(config, dtype, walks, max_num_rows, block_size, kernels=kernels).total
                assert step_bytes_bound(config, walks, max_num_rows, block_size) >= exact
