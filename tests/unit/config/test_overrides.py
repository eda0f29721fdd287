from collections.abc import Mapping
from pathlib import Path

import pytest

from shared.config.load import load_decode, load_prefill, load_serving
from shared.config.overrides import Override, apply
from shared.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text("{}")
    return file


def test_variables_override_keys_at_every_level(file: Path) -> None:
    file.write_text("model: a\nkv: {block_size: 16}\nmax_num_seqs: {prefill: 3, decode: 5}")
    environ = {
        "BATON_SERVING__KV__BLOCK_SIZE": "64",
        "BATON_SERVING__MAX_NUM_SEQS__DECODE": "7",
        "BATON_SERVING__PREFILL_TOKEN_BUCKETS__PREFILL__PREFILL_TEXT": "[8, 16]",
        "BATON_SERVING__LOCAL_PREFILL_MAX_TOKENS": "null",
        "PATH": "/bin",
        "BATON_CACHE": "/tmp/cache",
    }
    config = load_serving(file, environ)
    assert config.model == "a"
    assert config.kv.block_size == 64
    assert (config.max_num_seqs.prefill, config.max_num_seqs.decode) == (3, 7)
    assert config.prefill_token_buckets.prefill.prefill_text == (8, 16)
    assert config.local_prefill_max_tokens is None


def test_each_config_reads_its_own_section(file: Path) -> None:
    environ = {"BATON_PREFILL__PORT": "1", "BATON_DECODE__PORT": "2", "BATON_SERVING__MODEL": "m"}
    assert load_prefill(file, environ).port == 1
    assert load_decode(file, environ).port == 2
    assert load_serving(file, environ).model == "m"


def test_lists_of_addresses_and_hosts_are_plain_text(file: Path) -> None:
    environ = {"BATON_DECODE__PREFILL_TARGETS": "[localhost:50061, 10.0.0.7:50061]", "BATON_DECODE__HOST": "0.0.0.0"}
    config = load_decode(file, environ)
    assert config.prefill_targets == ("localhost:50061", "10.0.0.7:50061")
    assert config.host == "0.0.0.0"


def test_a_wrong_value_in_a_list_is_refused_by_the_variable_that_holds_the_list(file: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_prefill(file, {"BATON_PREFILL__TRANSPORTS": "[shm, rdma]"})
    assert refused.value.message == (
        'BATON_PREFILL__TRANSPORTS: transports[1]: found "rdma"; needs one of shm, grpc, local'
    )


def test_names_are_case_insensitive(file: Path) -> None:
    assert load_serving(file, {"baton_Serving__kv__Block_Size": "8"}).kv.block_size == 8


def test_an_inner_key_overrides_an_outer_variable_and_the_short_form_of_the_file(file: Path) -> None:
    file.write_text("max_batch_tokens: {prefill: 2048}")
    environ = {
        "BATON_SERVING__MAX_BATCH_TOKENS__PREFILL__PREFILL_TEXT": "100",
        "BATON_SERVING__MAX_NUM_SEQS__DECODE": "9",
        "BATON_SERVING__MAX_NUM_SEQS": "{prefill: 3, decode: 4}",
    }
    config = load_serving(file, environ)
    assert config.max_batch_tokens.prefill.prefill_text == 100
    assert (config.max_num_seqs.prefill, config.max_num_seqs.decode) == (3, 9)


REFUSED = {
    "unknown key": (
        {"BATON_SERVING__KV__BLOKSIZE": "3"},
        "BATON_SERVING__KV__BLOKSIZE: kv.bloksize: found an unknown key; needs block_size",
    ),
    "key below an unknown one": (
        {"BATON_SERVING__MAX_NUM_SEQ__DECODE": "3"},
        "BATON_SERVING__MAX_NUM_SEQ__DECODE: max_num_seq: found an unknown key; needs one of ",
    ),
    "key below a number": (
        {"BATON_SERVING__DTYPE__WEIGHTS": "auto"},
        'BATON_SERVING__DTYPE__WEIGHTS: dtype: found {"weights": "auto"}; needs one of auto, float32, bfloat16',
    ),
    "old spelling": (
        {"BATON_SERVING__MODEL_KWARGS__PREFILL_TOKEN_BUCKETS": "[32]"},
        "BATON_SERVING__MODEL_KWARGS__PREFILL_TOKEN_BUCKETS: model_kwargs.prefill_token_buckets: found the old",
    ),
    "wrong value": (
        {"baton_serving__max_model_len": "true"},
        "baton_serving__max_model_len: max_model_len: found true; needs an integer ≥ 2 or null",
    ),
    "wrong place in a list": (
        {"BATON_SERVING__DECODE_BATCH_BUCKETS__DECODE__DECODE": "[1, 1]"},
        "BATON_SERVING__DECODE_BATCH_BUCKETS__DECODE__DECODE: decode_batch_buckets.decode.decode: found 1 twice; needs",
    ),
    "empty value": ({"BATON_SERVING__MODEL": ""}, "BATON_SERVING__MODEL: model: found null; needs a string"),
    "no YAML": ({"BATON_SERVING__KV": "{block_size: "}, "BATON_SERVING__KV: line 1, column 14: while parsing"),
    "no key": ({"BATON_SERVING__": "1"}, 'BATON_SERVING__: "": found an unknown key; needs one of model'),
    "unknown section": (
        {"BATON_SERVNG__MODEL": "a"},
        (
            "BATON_SERVNG__MODEL: found an unknown section; needs one of BATON_SERVING__, BATON_PREFILL__, "
            "BATON_DECODE__ (did you mean BATON_SERVING__?)"
        ),
    ),
    "one key twice": (
        {"BATON_SERVING__MODEL": "a", "baton_serving__model": "b"},
        "baton_serving__model: found BATON_SERVING__MODEL too; needs one variable for a key",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_variable_is_refused_by_name(name: str, file: Path) -> None:
    environ, beginning = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        load_serving(file, environ)
    assert refused.value.message.startswith(beginning)
    assert "\n" not in refused.value.message


def test_mistakes_of_the_file_are_told_from_those_of_variables(file: Path) -> None:
    file.write_text("max_num_seqs: {prefill: 0}")
    with pytest.raises(ConfigError) as refused:
        load_serving(file, {"BATON_SERVING__MAX_NUM_SEQS__DECODE": "-1"})
    assert refused.value.message.splitlines() == [
        f"{file}: max_num_seqs.prefill: found 0; needs an integer ≥ 1",
        "BATON_SERVING__MAX_NUM_SEQS__DECODE: max_num_seqs.decode: found -1; needs an integer ≥ 1",
    ]


def test_overriding_leaves_the_mapping_as_it_was() -> None:
    mapping: Mapping[object, object] = {"kv": {"block_size": 32}, "model": "a"}
    changed = apply([Override("V", ("kv", "block_size"), 8), Override("W", ("model",), "b")], mapping)
    assert changed == {"kv": {"block_size": 8}, "model": "b"}
    assert mapping == {"kv": {"block_size": 32}, "model": "a"}
