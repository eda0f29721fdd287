"""What a file may not be, before any key is looked at."""

from pathlib import Path

import pytest

from shared.config.load import load_serving
from shared.config.serving import ServingConfig
from shared.errors import ConfigError, Reason
from tests.unit.config.unreadable import UNREADABLE


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
