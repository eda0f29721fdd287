"""int8 weights in whole models: the same bits however a step is made up, as near to the model as is stated."""

from pathlib import Path

import pytest
import structlog
import torch

from benchmarks.quality import TEXT_FILES, Reader, chunks_of, measure
from shared.engine import select
from shared.engine.kernels.library import KernelLibrary
from shared.engine.runner import LoadedModel, load_model
from shared.engine.step import StepRow
from shared.engine.storage import storage_bytes
from shared.errors import ModelLoadError
from shared.text.tokenizer import Tokenizer
from tests.integration.engine.harness import Harness, num_threads, random_tokens, table_for
from tests.kernel_libraries import native_library
from tests.tiny_models import write_tiny_model


@pytest.fixture
def _library(kernel_library: KernelLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "find_library", lambda: kernel_library)


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen2", "qwen3"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("int8") / request.param, request.param, head_dim=32)


def native(directory: Path) -> LoadedModel:
    return load_model(directory, "bfloat16", kernels="native", weights="int8")


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_chunks_company_or_threads(directory: Path, threads: int) -> None:
    model = native(directory)
    token_ids = random_tokens(150, model.config.vocab_size, seed=1)
    with num_threads(1):
        expected = Harness(model).outcome(token_ids, table_for(200), [150])
    with num_threads(threads):
        for chunk_lens in ([1, 2, 147], [31, 33, 86], [24, 25, 101], [149, 1], [6, 7, 12, 13, 96, 16]):
            harness, start = Harness(model), 0
            for length in chunk_lens:
                mine = StepRow(token_ids[start : start + length], start, table_for(200), wants_logits=True)
                others = [
                    StepRow(random_tokens(n, 200, seed=n), 0, table_for(n, first_block=20 + n), wants_logits=n == 5)
                    for n in (1, 5, 30)
                ]
                logits = harness.run(others[0], mine, *others[1:])[0]
                start += length
            assert torch.equal(logits, expected.logits)


@pytest.mark.usefixtures("_library")
def test_kernels_compute_with_the_values_that_plain_torch_has(directory: Path) -> None:
    """Against plain torch with the same int8 weights and float32 for the rest, and against what they were made of."""
    token_ids = random_tokens(100, 256, seed=2)

    def logits(model: LoadedModel) -> torch.Tensor:
        return Harness(model).outcome(token_ids, table_for(100), [100]).logits

    exact = logits(load_model(directory, "float32"))
    found, oracle = logits(native(directory)), logits(load_model(directory, "float32", weights="int8"))
    assert (found - oracle).abs().mean() < 0.03 * exact.abs().mean()
    assert 0 < (oracle - exact).abs().mean() < 0.03 * exact.abs().mean()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plain_torch_does_not_depend_on_chunks(directory: Path, dtype: str) -> None:
    model = load_model(directory, dtype, weights="int8")
    token_ids = random_tokens(150, model.config.vocab_size, seed=1)
    expected = Harness(model).outcome(token_ids, table_for(150), [150])
    for chunk_lens in ([1, 149], [31, 33, 86], [100, 50]):
        assert Harness(model).outcome(token_ids, table_for(150), chunk_lens).equals(expected)


def test_a_weight_takes_a_byte_and_the_embedding_table_stays(tmp_path: Path) -> None:
    native_library()
    directory = write_tiny_model(tmp_path / "tied", "llama", head_dim=32, tie_word_embeddings=True)
    with structlog.testing.capture_logs() as logs:
        weights = native(directory).weights
    assert weights.embedding.dtype == torch.bfloat16
    for weight in (weights.lm_head, *(part for layer in weights.layers for part in (layer.qkv, layer.gate_up))):
        assert weight.data.dtype == torch.int8
    # 272 outputs of 64 inputs, filled up to whole panels of 32; and a float32 for each.
    assert storage_bytes(weights.lm_head) == 288 * 64 + 288 * 4
    (line,) = (line for line in logs if line["event"] == "weights_quantized")
    assert (line["to"], line["held_as"]) == ("int8", "int8")


def test_other_weights_are_refused(tiny_llama_dir: Path) -> None:
    with pytest.raises(ModelLoadError, match="weights is 'int4'; served are dtype, int8"):
        load_model(tiny_llama_dir, weights="int4")


@pytest.fixture(scope="module")
def chunks(smollm2_dir: Path) -> list[list[int]]:
    text = TEXT_FILES[0].read_text() + TEXT_FILES[1].read_text()
    token_ids = Tokenizer.from_directory(smollm2_dir).encode(text)
    return [list(chunk) for chunk in chunks_of(token_ids, 256)][::3]


def test_the_real_model_loses_little(smollm2_dir: Path, chunks: list[list[int]]) -> None:
    """The bounds of docs/quantization.md, on part of its text."""
    native_library()
    found = measure(smollm2_dir, chunks).variants
    assert found["int8"].perplexity < 1.03 * found["bfloat16"].perplexity
    assert found["int8"].top1_agreement > 0.9
    assert found["int8"].mean_logit_error < 0.4
    assert found["bfloat16"].mean_logit_error < found["int8"].mean_logit_error, "or nothing was quantized"


def test_a_reader_gives_what_a_sequence_of_each_length_would(directory: Path) -> None:
    model = load_model(directory, "float32")
    token_ids = random_tokens(70, 256, seed=3)
    found = Reader(model, 70).logits(token_ids)
    for length in (1, 2, 31, 32, 33, 70):
        alone = Harness(model).outcome(token_ids[:length], table_for(length), [length]).logits
        assert torch.equal(found[length - 1], alone)
