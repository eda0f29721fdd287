"""Native kernels in whole models: the same bits however a step is made up, as near to float32 as bfloat16 gets."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.engine.kernels.build import build
from shared.engine.kernels.library import best_isa, find_library
from shared.engine.runner import LoadedModel, load_model
from shared.engine.step import StepRow
from shared.errors import ModelLoadError
from tests.integration.engine.harness import Harness, random_tokens, table_for
from tests.tiny_models import write_tiny_model


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    isa = best_isa()
    if isa is None:
        pytest.skip("this CPU has no instruction set that there are kernels for")
    build(isa)
    find_library.cache_clear()


@pytest.fixture(params=[1, 2])
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
        # Padding to a pair behind the last token is not the sequence's own.
        assert torch.equal(harness.kv(table_for(200), 0), expected.kv[:0])


def test_results_are_near_float32(directory: Path) -> None:
    token_ids = random_tokens(100, 256, seed=2)
    exact = Harness(load_model(directory, "float32")).outcome(token_ids, table_for(100), [100]).logits
    found = Harness(native(directory)).outcome(token_ids, table_for(100), [100]).logits
    assert (found - exact).abs().mean() < 0.03 * exact.abs().mean()


def test_the_real_model_is_nearer_to_float32_than_plain_bfloat16(smollm2_dir: Path) -> None:
    token_ids = load_text(smollm2_dir)
    logits = {
        name: Harness(model).outcome(token_ids, table_for(len(token_ids)), [len(token_ids)]).logits
        for name, model in (
            ("exact", load_model(smollm2_dir, "float32")),
            ("torch", load_model(smollm2_dir, "bfloat16")),
            ("native", native(smollm2_dir)),
        )
    }
    error = {name: (logits[name] - logits["exact"]).abs().mean().item() for name in ("torch", "native")}
    assert error["native"] < 0.1
    assert error["native"] <= 1.2 * error["torch"]
    assert logits["native"].argmax() == logits["exact"].argmax()


def load_text(directory: Path) -> list[int]:
    from shared.text.tokenizer import Tokenizer

    return Tokenizer.from_directory(directory).encode("The quick brown fox jumps over the lazy dog, and then " * 12)


@pytest.mark.parametrize(
    ("shape", "block_size", "reason"),
    [
        ({"head_dim": 16}, 32, "head_dim 16 is no multiple of 32"),
        ({"head_dim": 32}, 16, "kv.block_size is 16, not 32"),
        ({"head_dim": 32, "num_attention_heads": 26, "num_key_value_heads": 2}, 32, "13 query heads share a KV head"),
    ],
)
def test_what_they_cannot_run_runs_in_torch_and_is_refused_where_they_are_asked_for(
    tmp_path: Path, shape: dict[str, int], block_size: int, reason: str
) -> None:
    directory = write_tiny_model(tmp_path / "odd", "qwen3", dtype=torch.float32, **shape)
    assert load_model(directory, "auto", block_size=block_size, kernels="auto").ops.name == "torch"
    with pytest.raises(ModelLoadError, match=reason):
        load_model(directory, "auto", block_size=block_size, kernels="native")


def test_float32_is_plain_torch(directory: Path) -> None:
    assert load_model(directory, "float32", kernels="auto").ops.name == "torch"
    with pytest.raises(ModelLoadError, match="dtype is float32"):
        load_model(directory, "float32", kernels="native")
