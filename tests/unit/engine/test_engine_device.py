"""A model on another device than the host: every op gets its tensors from there.

The other device is torch's meta device, which computes shapes alone, so there is no GPU to be had for these tests.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shared.config.resolve import ResolvedWalk
from shared.engine import torch_attention, torch_linear
from shared.engine.models.config import read_config
from shared.engine.models.loaded import outline_model
from shared.engine.pool import DevicePool
from shared.engine.runner import Runner
from shared.engine.step import StepRow
from shared.engine.tiling import LONG_TILE_LEN, TileLens
from shared.ladder import Ladder
from tests.integration.engine.stand_in_graphs import StandInRecorder
from tests.tiny_models import VOCAB_SIZE, write_tiny_model

META = torch.device("meta")


class OneDeviceAnOp(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Fails where an op gets tensors of two devices, unless it is there to copy; counts those on the meta device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_on_meta = 0
        self.copied: list[torch.device] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        devices = {leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        if func in (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default):
            self.copied += devices - {META}
        else:
            assert len(devices) <= 1, f"{func} with tensors on {devices}"
        self.num_on_meta += devices == {META}
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def _no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes compare values, of which the meta device has none."""
    monkeypatch.setattr(torch_linear, "probe_sizes", lambda *_: (16, 64))
    monkeypatch.setattr(torch_attention, "probe_tile_lens", lambda *_: TileLens(LONG_TILE_LEN))


@pytest.mark.parametrize("make_recorder", [lambda: None, StandInRecorder], ids=["buffers", "graphs"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ops_get_tensors_of_the_models_device_alone(
    tmp_path: Path, family: str, dtype: str, make_recorder: Callable[[], StandInRecorder | None]
) -> None:
    config = read_config(write_tiny_model(tmp_path, family))
    with META:
        model = outline_model(config, dtype)
    pool = DevicePool.allocate(model.kv_layout(16), 32, META)
    walk = ResolvedWalk("decode", "mixed", None, Ladder((64,)))
    runner = Runner(model, pool, [walk], max_num_rows=8, recorder=make_recorder())
    vectors = np.zeros((20, config.hidden_size), np.float32)
    rows = [
        StepRow([1] * 40, 10, [1, 2, 3, 4], wants_logits=True, input_embeddings=vectors),
        StepRow([1], 200, range(5, 18), wants_logits=True),
        StepRow([1], 0, [20], wants_logits=False),
    ]

    with OneDeviceAnOp() as watch:
        logits = runner.run("mixed", rows)
        runner.run("mixed", rows * 2)  # above the top rung

    assert (logits.device, logits.shape) == (META, (2, VOCAB_SIZE))
    assert watch.num_on_meta > 100
    assert torch.device("cpu") in watch.copied


def test_pool_on_another_device_is_a_bug_of_the_caller(tmp_path: Path) -> None:
    model = outline_model(read_config(write_tiny_model(tmp_path)), "float32")
    pool = DevicePool.allocate(model.kv_layout(16), 32, torch.device("cpu"))

    with pytest.raises(AssertionError, match="pool on cpu, model on meta"):
        Runner(model, pool, [])
