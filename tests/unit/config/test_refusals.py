"""Every way to get the serving config wrong is refused, at the right key and for the right reason."""

from pathlib import Path

import pytest

from shared.config.load import load_serving
from shared.errors import ConfigError
from tests.unit.config.malformed_ladders import LADDERS
from tests.unit.config.malformed_settings import SETTINGS, TOP_LEVEL_KEYS

MALFORMED = {**SETTINGS, **LADDERS}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused(name: str, tmp_path: Path) -> None:
    text, key, reason = MALFORMED[name]
    file = tmp_path / "serving.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_serving(file, environ={})
    assert refused.value.message == f"{file}: {key}: {reason}"
    assert refused.value.metadata == {"file": str(file), "keys": key}


def test_all_mistakes_of_a_file_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text(
        """
        max_batch_tokens: {prefill: {prefill_text: 0}, decode: {decode: 5}}
        model_kwargs: {prefill_token_buckets: {}, dtype: auto}
        kv: {block_size: no}
        """
    )
    with pytest.raises(ConfigError) as refused:
        load_serving(file, environ={})
    keys = [line.removeprefix(f"{file}: ").partition(":")[0] for line in refused.value.message.splitlines()]
    assert sorted(keys) == [
        "kv.block_size",
        "max_batch_tokens.decode.decode",
        "max_batch_tokens.prefill.prefill_text",
        "model_kwargs.dtype",
        "model_kwargs.prefill_token_buckets",
    ]


def test_a_long_value_is_shortened(tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text(f"dtype: {'x' * 1000}")
    with pytest.raises(ConfigError) as refused:
        load_serving(file, environ={})
    assert f'found "{"x" * 56}...; needs' in refused.value.message


OLD_SPELLING = MALFORMED["old spelling"][2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "model: {model_kwargs: {prefill_token_buckets: [32]}}",
            'model: found {"model_kwargs": {"prefill_token_buckets": [32]}}; needs a string that is not empty',
        ),
        (
            "engine: {model_kwargs: {prefill_token_buckets: [32]}}",
            f"engine: found an unknown key; needs one of {TOP_LEVEL_KEYS}",
        ),
    ],
)
def test_an_old_spelling_below_a_wrong_key_is_told_too(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_serving(file, environ={})
    key = text.partition(":")[0]
    assert refused.value.message.splitlines() == [
        f"{file}: {reason}",
        f"{file}: {key}.model_kwargs.prefill_token_buckets: {OLD_SPELLING}",
    ]


def test_a_value_that_aliases_make_endless_is_shortened_at_once(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 40)]
    file = tmp_path / "serving.yaml"
    file.write_text("\n".join([*levels, "model: *a39"]))
    with pytest.raises(ConfigError, match=r'model: found \[{40}"x", "x", "x", .*\.\.\.; needs a string'):
        load_serving(file, environ={})


def test_what_a_terminal_would_take_for_a_command_is_written_out(tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text('model: ["\\x9b2J"]\n"\\x9b2J": 1')
    with pytest.raises(ConfigError) as refused:
        load_serving(file, environ={})
    found, unknown = refused.value.message.splitlines()
    assert found == f'{file}: model: found ["\\x9b2J"]; needs a string that is not empty'
    assert unknown.startswith(f'{file}: "\\x9b2J": found an unknown key')
