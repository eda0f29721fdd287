import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from shared.engine.models.config import read_config
from shared.engine.models.gguf_import import convert_gguf
from shared.engine.models.rope import Llama3Scaling, Rope, inverse_frequencies
from shared.errors import ModelLoadError
from tests.unit.engine.tiny_gguf import gpt2_tokenizer, sentencepiece_tokenizer, write_tiny_gguf


def convert(directory: Path) -> Path:
    converted = directory / "converted"
    converted.mkdir()
    convert_gguf(directory / "tiny.gguf", converted, lambda _done: None)
    return converted


def converted_tokenizer(directory: Path, **changes: Any) -> Tokenizer:
    write_tiny_gguf(directory / "tiny.gguf", **changes)
    return Tokenizer.from_file(str(convert(directory) / "tokenizer.json"))


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_weights_come_out_as_they_were_before_llama_cpp(tmp_path: Path, model_type: str) -> None:
    expected = write_tiny_gguf(tmp_path / "tiny.gguf", model_type)

    weights = load_file(convert(tmp_path) / "model.safetensors")

    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor.to(torch.bfloat16)), name


def test_quantized_weights_are_dequantized(tmp_path: Path) -> None:
    expected = write_tiny_gguf(tmp_path / "tiny.gguf", "qwen3", quantized=True)

    weights = load_file(convert(tmp_path) / "model.safetensors")

    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(weights[name], expected[name].to(torch.bfloat16))


def test_config_says_what_the_metadata_say(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", "qwen3", tokenizer=gpt2_tokenizer(eot_token_id=3))

    config = read_config(convert(tmp_path))

    assert (config.model_type, config.vocab_size, config.hidden_size, config.head_dim) == ("qwen3", 16, 64, 32)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (1, 4, 2)
    assert (config.intermediate_size, config.max_model_len, config.rope) == (96, 1024, Rope(10000.0))
    assert config.norm_eps == pytest.approx(1e-5)
    assert config.eos_token_ids == (0, 3)
    assert not config.ties_embeddings


def test_model_without_an_output_matrix_ties_its_embeddings(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", "llama")

    assert read_config(convert(tmp_path)).ties_embeddings


def test_llama_3_scaling_is_found_from_its_factors(tmp_path: Path) -> None:
    scaling = Llama3Scaling(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=8192)
    rope = Rope(500000.0, scaling)
    factors = inverse_frequencies(Rope(500000.0), 16) / inverse_frequencies(rope, 16)
    write_tiny_gguf(tmp_path / "tiny.gguf", rope_theta=500000.0, extra={"rope_freqs.weight": factors})

    assert read_config(convert(tmp_path)).rope == rope


def test_other_rope_factors_are_refused(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", extra={"rope_freqs.weight": torch.full((8,), 3.0)})

    with pytest.raises(ModelLoadError, match="rope factors"):
        convert(tmp_path)


def test_linear_scaling_is_kept(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})

    assert json.loads((convert(tmp_path) / "config.json").read_text())["rope_scaling"] == {
        "rope_type": "linear",
        "factor": 4.0,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": {"expert_count": 8}}, "mixtures of experts"),
        ({"keys": {"attention.sliding_window": 100}}, "looks back 100 tokens"),
        ({"keys": {"attention.value_length": 8}}, "differ in length"),
        ({"keys": {"rope.dimension_count": 8}}, "part of each head is rotated"),
        ({"keys": {"rope.scaling.type": "yarn"}}, "'yarn'"),
        ({"architecture": "gemma2"}, "architecture is 'gemma2'"),
        ({"extra": {"blk.0.ssm_a.weight": torch.zeros(1)}}, "ssm_a"),
        ({"tokenizer": gpt2_tokenizer(pre="chameleon")}, "'chameleon'"),
        ({"tokenizer": gpt2_tokenizer(model="bert")}, "tokenizer is 'bert'"),
    ],
)
def test_what_is_not_served_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", **changes)

    with pytest.raises(ModelLoadError, match=message):
        convert(tmp_path)


def test_missing_key_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()

    with pytest.raises(ModelLoadError, match=r"llama\.attention\.head_count is missing"):
        convert(tmp_path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GIF89a" + bytes(100))

    with pytest.raises(ModelLoadError, match="as GGUF"):
        convert(tmp_path)


def test_smollm_splits_digits_and_keeps_special_tokens_whole(tmp_path: Path) -> None:
    tokenizer = converted_tokenizer(tmp_path)

    assert tokenizer.encode("ab a12<|end|><think>").ids == [3, 7, 4, 5, 0, 8]
    assert tokenizer.decode([3, 7, 0, 8], skip_special_tokens=True) == "ab a<think>"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, [1]), ({"add_bos_token": True}, [0, 1]), ({"add_bos_token": True, "add_eos_token": True}, [0, 1, 0])],
)
def test_ends_are_added_as_the_file_says(tmp_path: Path, changes: dict[str, bool], expected: list[int]) -> None:
    assert converted_tokenizer(tmp_path, tokenizer=gpt2_tokenizer(**changes)).encode("a").ids == expected


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("llama-bpe", ["1234"[:3], "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("tekken", ["1", "2", "3", "4"]),
        ("gpt-2", ["1234"]),
    ],
)
def test_numbers_are_split_as_each_family_does(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    tokenizer = converted_tokenizer(tmp_path, tokenizer=gpt2_tokenizer(pre=pre))
    assert tokenizer.pre_tokenizer is not None

    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("1234")] == pieces


def test_sentencepiece_merges_by_score(tmp_path: Path) -> None:
    tokenizer = converted_tokenizer(tmp_path, tokenizer=sentencepiece_tokenizer())

    # Space and letters merge into ab first (-1), then with the leading space (-2); Llama begins with <s>.
    assert tokenizer.encode("ab").tokens == ["<s>", "▁ab"]
    assert tokenizer.encode("ab a\n").tokens == ["<s>", "▁ab", "▁a", "<0x0A>"]
    assert tokenizer.decode([1, 9, 8, 3]) == "ab a\n"


def test_sentencepiece_without_a_leading_space(tmp_path: Path) -> None:
    tokenizer = converted_tokenizer(tmp_path, tokenizer=sentencepiece_tokenizer(add_space_prefix=False))

    assert tokenizer.encode("ab").tokens == ["<s>", "ab"]
    assert tokenizer.decode([9], skip_special_tokens=True) == " ab"


def test_progress_goes_from_none_to_all(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "converted").mkdir()
    seen: list[float] = []

    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "converted", seen.append)

    assert seen[0] == 0
    assert seen[-1] == 1
    assert seen == sorted(seen)


def test_chat_template_and_names_of_special_tokens_are_kept(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", tokenizer=gpt2_tokenizer(padding_token_id=4))

    config = json.loads((convert(tmp_path) / "tokenizer_config.json").read_text())

    assert (config["bos_token"], config["eos_token"], config["pad_token"]) == ("<|end|>", "<|end|>", "1")
    assert config["model_max_length"] == 1024
