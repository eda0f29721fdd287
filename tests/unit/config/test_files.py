"""What a file may not be, before any key is looked at."""

from pathlib import Path

import pytest

from shared.config.load import load_serving
from shared.config.serving import ServingConfig
from shared.errors import ConfigError, Reason

UNREADABLE = {
    "empty": (b"", "found an empty file; needs a mapping of keys ({} for all defaults)"),
    "only comments": (b"# nothing\n", "found an empty file; needs a mapping of keys ({} for all defaults)"),
    "list at the top": (b"- 1\n- 2\n", "found [1, 2] at the top; needs a mapping of keys"),
    "text at the top": (b"just text", 'found "just text" at the top; needs a mapping of keys'),
    "no UTF-8": (b"model: \xff\xfe", "found bytes that are no UTF-8, at byte 7; needs UTF-8 text"),
    "UTF-16": ("model: a".encode("utf-16"), "found bytes that are no UTF-8, at byte 0; needs UTF-8 text"),
    "syntax": (
        b"model: a\nkv: {block_size: 32\n",
        "line 3, column 1: while parsing a flow mapping expected ',' or '}', but got '<stream end>'; needs valid YAML",
    ),
    "tab": (
        b"model:\n\t- a",
        (
            "line 2, column 1: while scanning for the next token found character '\\t' that cannot start any token; "
            "needs valid YAML"
        ),
    ),
    "key twice": (
        b"dtype: auto\nmodel: a\ndtype: float32\n",
        (
            'line 3, column 1: while constructing a mapping found duplicate key "dtype" with value "float32" '
            '(original value: "auto"); needs valid YAML'
        ),
    ),
    "two documents": (
        b"model: a\n---\nmodel: b\n",
        "line 2, column 1: expected a single document in the stream but found another document; needs valid YAML",
    ),
    "object": (
        b"model: !!python/object:os.system x",
        (
            "line 1, column 8: could not determine a constructor for the tag 'tag:yaml.org,2002:"
            "python/object:os.system'; needs valid YAML"
        ),
    ),
    "control character": (
        b"model: \x01",
        (
            'found what cannot be read (unacceptable character #x0001: special characters are not allowed in "<unicode '
            'string>", position 7); needs valid YAML'
        ),
    ),
    "no date": (b"model: 2024-13-45", "found what cannot be read (month must be in 1..12); needs valid YAML"),
    "deep nesting": (b"[" * 5000 + b"]" * 5000, "found values nested too deeply; needs a few levels"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_holds_no_mapping_is_refused(name: str, tmp_path: Path) -> None:
    content, reason = UNREADABLE[name]
    file = tmp_path / "serving.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        load_serving(file, environ={})
    assert refused.value.message == f"{file}: {reason}"
    assert refused.value.reason is Reason.CONFIG_INVALID


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    with pytest.raises(ConfigError) as refused:
        load_serving(file, environ={})
    assert refused.value.message == f"{file}: found no such file; needs a YAML file"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_serving(tmp_path, environ={})
    assert refused.value.message == f"{tmp_path}: found a directory; needs a YAML file"


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("model: a")
    with pytest.raises(ConfigError) as refused:
        load_serving(tmp_path / "file" / "serving.yaml", environ={})
    assert refused.value.message == (
        f"{tmp_path}/file/serving.yaml: cannot be read (Not a directory); needs a YAML file"
    )


@pytest.mark.parametrize("content", [b"{}", b"\xef\xbb\xbf{}", b"%YAML 1.2\n---\n{}\n", b"dtype: auto\r\n"])
def test_what_is_left_out_has_its_default(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_bytes(content)
    assert load_serving(file, environ={}) == ServingConfig()


def test_words_that_yaml_1_1_took_for_bools_are_text(tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text("model: no")
    assert load_serving(str(file), environ={}).model == "no"
