import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shared.engine.models.files import weight_files
from shared.engine.models.fingerprint import model_fingerprint
from shared.engine.models.weights import open_weights
from shared.errors import ModelLoadError
from tests.tiny_models import write_tiny_model


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "two.safetensors")
    weight_map = {"b": "two.safetensors", "a": "one.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    assert [path.name for path in weight_files(tmp_path)] == ["one.safetensors", "two.safetensors"]
    with open_weights(tmp_path) as reader:
        assert reader.take("b", (3,)).tolist() == [1, 1, 1]
        assert reader.untaken() == ["a"]


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "model.safetensors")

    with open_weights(tmp_path) as reader:
        with pytest.raises(ModelLoadError, match="no tensor 'b'"):
            reader.take("b", (1,))
        with pytest.raises(ModelLoadError, match=r"\[2, 3\].*\[3, 2\]"):
            reader.take("a", (3, 2))


def test_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="holds neither"):
        weight_files(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 1}'])
def test_malformed_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)

    with pytest.raises(ModelLoadError, match="not an index"):
        weight_files(tmp_path)


def test_file_that_is_no_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")

    with pytest.raises(ModelLoadError, match="cannot read the weights"), open_weights(tmp_path):
        pass


def test_fingerprint_is_of_content_not_of_place(tmp_path: Path) -> None:
    first = model_fingerprint(write_tiny_model(tmp_path / "a"))

    assert model_fingerprint(write_tiny_model(tmp_path / "b")) == first
    assert len(bytes.fromhex(first)) == 32


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"])
def test_fingerprint_changes_with_each_file(tmp_path: Path, file: str) -> None:
    directory = write_tiny_model(tmp_path / "a")
    before = model_fingerprint(directory)

    with (directory / file).open("ab") as appended:
        appended.write(b" ")

    assert model_fingerprint(directory) != before


def test_fingerprint_is_read_back_while_sizes_and_times_stay(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "a")
    config = directory / "config.json"
    before, times = model_fingerprint(directory), config.stat()
    text = config.read_text()

    config.write_text(text.replace("1024", "1025"))
    os.utime(config, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert model_fingerprint(directory) == before  # same size and time: not read again

    os.utime(config, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert model_fingerprint(directory) != before


def test_fingerprint_survives_a_damaged_cache(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "a")
    before = model_fingerprint(directory)

    (directory / ".fingerprint.json").write_text('{"stamp"')

    assert model_fingerprint(directory) == before
