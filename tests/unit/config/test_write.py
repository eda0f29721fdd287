import os
from pathlib import Path

import pytest

from shared.config.load import load_serving
from shared.config.write import overriding_variables, write_rungs
from shared.errors import ConfigError

KEY = ("prefill_token_buckets", "prefill", "prefill_text")
VARIABLE = "BATON_SERVING__PREFILL_TOKEN_BUCKETS__PREFILL__PREFILL_TEXT"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "serving.yaml"
    file.write_text("# ours\nmodel: a\n")
    return file


def test_rungs_are_written_and_given_back_as_the_file_says_them(file: Path) -> None:
    written = write_rungs(file, KEY, [32, 2048], environ={})
    assert written == load_serving(file, environ={})
    assert written.prefill_token_buckets.prefill.prefill_text == (32, 2048)
    assert file.read_text().startswith("# ours\nmodel: a\nprefill_token_buckets:\n")


def test_nothing_but_the_file_is_left_and_its_mode_stays(file: Path) -> None:
    file.chmod(0o640)
    write_rungs(file, KEY, [2048], environ={})
    assert [path.name for path in file.parent.iterdir()] == ["serving.yaml"]
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(file)
    write_rungs(link, KEY, [2048], environ={})
    assert link.is_symlink()
    assert "prefill_text: [2048]" in file.read_text()


def test_a_byte_order_mark_stays(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfmodel: a\r\n")
    write_rungs(file, KEY, [2048], environ={})
    assert file.read_bytes() == (
        b"\xef\xbb\xbfmodel: a\r\nprefill_token_buckets:\r\n  prefill:\r\n    prefill_text: [2048]\r\n"
    )


def test_the_same_rungs_write_nothing(file: Path) -> None:
    write_rungs(file, KEY, [2048], environ={})
    before = file.stat()
    write_rungs(file, KEY, [2048], environ={})
    assert file.stat().st_ino == before.st_ino


def test_what_would_be_refused_is_not_written(file: Path) -> None:
    text = file.read_text()
    with pytest.raises(ConfigError, match=r"prefill_token_buckets\.prefill\.prefill_text: found 2 after 4; needs"):
        write_rungs(file, KEY, [4, 2], environ={})
    with pytest.raises(ConfigError, match=r"decode_batch_buckets\.decode\.decode: found the top rung 2; needs"):
        write_rungs(file, ("decode_batch_buckets", "decode", "decode"), [1, 2], environ={})
    assert file.read_text() == text


def test_variables_that_set_the_key_do_not_hide_what_the_file_says(file: Path) -> None:
    environ = {VARIABLE: "[64]", "BATON_SERVING__MAX_NUM_SEQS__DECODE": "3"}
    written = write_rungs(file, KEY, [32, 2048], environ)
    assert written.prefill_token_buckets.prefill.prefill_text == (32, 2048)
    assert written.max_num_seqs.decode == 3


def test_a_write_that_fails_leaves_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = file.read_text()

    def no_replace(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_replace)
    with pytest.raises(OSError, match="No space left"):
        write_rungs(file, KEY, [2048], environ={})
    assert file.read_text() == text
    assert [path.name for path in file.parent.iterdir()] == ["serving.yaml"]


def test_variables_that_set_a_key_are_those_at_it_above_it_and_inside_it() -> None:
    environ = {
        VARIABLE: "[64]",
        "BATON_SERVING__PREFILL_TOKEN_BUCKETS": "{}",
        "BATON_SERVING__PREFILL_TOKEN_BUCKETS__DECODE__MIXED": "[64]",
        "BATON_SERVING__MODEL": "a",
        "BATON_DECODE__PORT": "1",
    }
    assert overriding_variables(KEY, environ) == ["BATON_SERVING__PREFILL_TOKEN_BUCKETS", VARIABLE]
    assert len(overriding_variables((), environ)) == 4
