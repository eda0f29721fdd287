import json
from pathlib import Path
from typing import Any

import pytest

from shared.engine.models.config import parse_config, read_config
from shared.engine.models.rope import LinearScaling, Llama3Scaling, Rope
from shared.errors import ModelLoadError
from tests.tiny_models import tiny_config

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_shape_is_read_and_defaults_follow_from_it() -> None:
    raw = tiny_config("llama")
    del raw["num_key_value_heads"]

    config = parse_config(raw, {})

    assert (config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim) == (64, 4, 4, 16)
    assert (config.num_layers, config.intermediate_size, config.max_model_len) == (2, 96, 1024)


def test_head_dim_may_differ_from_hidden_size_by_heads() -> None:
    assert parse_config(tiny_config("qwen3", head_dim=32), {}).head_dim == 32


@pytest.mark.parametrize(
    ("model_type", "overrides", "biases"),
    [
        ("llama", {}, (False, False, False)),
        ("llama", {"attention_bias": True, "mlp_bias": True}, (True, True, True)),
        ("mistral", {}, (False, False, False)),
        ("qwen2", {}, (True, False, False)),
        ("qwen3", {"attention_bias": True}, (True, True, False)),
    ],
)
def test_biases_by_family(model_type: str, overrides: dict[str, bool], biases: tuple[bool, bool, bool]) -> None:
    config = parse_config(tiny_config(model_type, **overrides), {})

    assert (config.has_qkv_bias, config.has_output_bias, config.has_mlp_bias) == biases
    assert config.has_qk_norm == (model_type == "qwen3")


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"rope_theta": 500.0}, Rope(500.0)),
        ({"rope_theta": 500.0, "rope_scaling": None}, Rope(500.0)),
        ({"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4}}, Rope(500.0, LinearScaling(4.0))),
        ({"rope_theta": 500.0, "rope_scaling": LLAMA3}, Rope(500.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, Rope(7.0)),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 7.0}}, Rope(7.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))),
    ],
)
def test_rope_in_old_and_new_spelling(keys: dict[str, Any], rope: Rope) -> None:
    assert parse_config(tiny_config("llama", **keys), {}).rope == rope


@pytest.mark.parametrize(
    ("ids", "generation", "expected"),
    [(3, {}, (3,)), (None, {}, ()), (3, {"eos_token_id": [4, 5]}, (4, 5)), (3, {"eos_token_id": 6}, (6,))],
)
def test_generation_config_decides_where_answers_end(
    ids: int | None, generation: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert parse_config(tiny_config("llama", eos_token_id=ids), generation).eos_token_ids == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope scaling is 'yarn'"),
    ],
)
def test_what_is_not_served_is_refused_by_name(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        parse_config({**tiny_config("llama"), **overrides}, {})


def test_window_shorter_than_the_context_is_refused_unless_the_context_is_cut() -> None:
    config = parse_config(tiny_config("mistral", sliding_window=256), {})

    with pytest.raises(ModelLoadError, match="256"):
        config.limited_to(None)
    assert config.limited_to(256).max_model_len == 256


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [
        ("mistral", {"sliding_window": 1024}),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": False}),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2}),
    ],
)
def test_windows_that_never_matter_are_served(model_type: str, overrides: dict[str, Any]) -> None:
    assert parse_config(tiny_config(model_type, **overrides), {}).limited_to(None).max_model_len == 1024


def test_window_of_upper_layers_matters() -> None:
    raw = tiny_config("qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=1)

    with pytest.raises(ModelLoadError, match="looks back 16 tokens"):
        parse_config(raw, {}).limited_to(None)


@pytest.mark.parametrize("limit", [0, -1, 1025])
def test_max_model_len_outside_the_models_own_is_refused(limit: int) -> None:
    with pytest.raises(ModelLoadError, match="1 to 1024"):
        parse_config(tiny_config("llama"), {}).limited_to(limit)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read"),
        ("[]", "must hold an object"),
        ('{"model_type": "llama"}', "'num_attention_heads' is missing"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(ModelLoadError, match=message) as caught:
        read_config(tmp_path)
    assert str(tmp_path / "config.json") in caught.value.message


def test_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        read_config(tmp_path)


def test_both_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("llama")))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')

    assert read_config(tmp_path).eos_token_ids == (1, 2)
