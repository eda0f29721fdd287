"""Native kernels in whole models: the same bits however a step is made up, as near to float32 as bfloat16 gets."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import torch

from shared.engine import select
from shared.engine.kernels.library import KernelLibrary
from shared.engine.runner import LoadedModel, load_model
from shared.engine.step import StepRow
from shared.errors import ModelLoadError
from shared.text.tokenizer import Tokenizer
from tests.integration.engine.harness import Harness, random_tokens, table_for
from tests.tiny_models import write_tiny_model


@pytest.fixture(autouse=True)
def _library(kernel_library: KernelLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "find_library", lambda: kernel_library)


@pytest.fixture(params=[1, 2, 5])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def native(directory: Path) -> LoadedModel:
    return load_model(directory, "auto", kernels="native")


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen2", "qwen3"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("native") / request.param, request.param, head_dim=32)


@pytest.mark.usefixtures("_threads")
def test_results_do_not_depend_on_chunks_company_threads_or_what_blocks_held(directory: Path) -> None:
    model = native(directory)
    token_ids = random_tokens(150, model.config.vocab_size, seed=1)
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = Harness(model).outcome(token_ids, table_for(200), [150])
    torch.set_num_threads(torch_threads)
    for chunk_lens in ([1, 2, 147], [31, 33, 86], [64, 86], [149, 1], [6, 7, 12, 13, 96, 16]):
        harness = Harness(model)
        harness.pool.tensor.fill_(float("nan"))
        start = 0
        for length in chunk_lens:
            mine = StepRow(token_ids[start : start + length], start, table_for(200), wants_logits=True)
            others = [
                StepRow(random_tokens(n, 200, seed=n), 0, table_for(n, first_block=20 + n), wants_logits=n % 2 == 0)
                for n in (1, 5, 30)
            ]
            logits = harness.run(others[0], mine, *others[1:])[0]
            start += length
        assert torch.equal(logits, expected.logits)
        # Of whole blocks: what lies behind the last token is not the sequence's own.
        assert torch.equal(harness.kv(table_for(200), 128), expected.kv[:128])


def test_results_are_near_float32(directory: Path) -> None:
    token_ids = random_tokens(100, 256, seed=2)
    exact = Harness(load_model(directory, "float32")).outcome(token_ids, table_for(100), [100]).logits
    found = Harness(native(directory)).outcome(token_ids, table_for(100), [100]).logits
    assert (found - exact).abs().mean() < 0.03 * exact.abs().mean()


def test_the_real_model_is_as_near_to_float32_as_plain_torch_with_such_weights(smollm2_dir: Path) -> None:
    token_ids = load_text(smollm2_dir)[:80]
    logits = {
        name: logits_at_every_tenth(load_model(smollm2_dir, dtype, kernels=kernels), token_ids)
        for name, dtype, kernels in (
            ("exact", "float32", "torch"),
            ("torch", "bfloat16", "torch"),
            ("native", "bfloat16", "native"),
        )
    }
    error = {name: (logits[name] - logits["exact"]).abs().mean().item() for name in ("torch", "native")}
    assert error["native"] <= 1.5 * error["torch"]


def logits_at_every_tenth(model: LoadedModel, token_ids: list[int]) -> torch.Tensor:
    harness, table = Harness(model), table_for(len(token_ids))
    return torch.cat(
        [
            harness.run(StepRow(token_ids[start : start + 10], start, table, wants_logits=True))
            for start in range(0, len(token_ids), 10)
        ]
    )


def load_text(directory: Path) -> list[int]:
    return Tokenizer.from_directory(directory).encode("The quick brown fox jumps over the lazy dog, and then " * 12)


@pytest.mark.parametrize(
    ("shape", "block_size", "reason"),
    [
        ({"head_dim": 16}, 32, "head_dim 16 is no multiple of 32"),
        ({"head_dim": 32}, 16, "kv.block_size is 16, not 32"),
    ],
)
def test_what_they_cannot_run_runs_in_torch_and_is_refused_where_they_are_asked_for(
    tmp_path: Path, shape: dict[str, int], block_size: int, reason: str
) -> None:
    directory = write_tiny_model(tmp_path / "odd", "qwen3", dtype=torch.float32, **shape)
    with structlog.testing.capture_logs() as logs:
        assert load_model(directory, "auto", block_size=block_size, kernels="auto").ops.name == "torch"
    (said,) = (line for line in logs if line["event"] == "native_kernels_not_used")
    assert re.search(reason, said["reason"])
    with pytest.raises(ModelLoadError, match=reason):
        load_model(directory, "auto", block_size=block_size, kernels="native")


def test_float32_is_plain_torch(directory: Path) -> None:
    assert load_model(directory, "float32", kernels="auto").ops.name == "torch"
    with pytest.raises(ModelLoadError, match="dtype is float32"):
        load_model(directory, "float32", kernels="native")
