import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DEPENDENCIES = ("grpc", "google/protobuf", "google/_upb", "typing_extensions.py")
"""What grpcio and protobuf install; typing_extensions is grpcio's own dependency."""

PROGRAM = """
import sys
sys.path.insert(0, "{wheel}")
sys.path.append("{dependencies}")
import baton_client
from baton.v1 import generation_pb2_grpc, prefill_pb2
assert baton_client.__file__.startswith("{wheel}") and prefill_pb2.__file__.startswith("{wheel}")
with baton_client.BatonClient("127.0.0.1:1", timeout=5) as client:
    try:
        client.generate("a", temperature=0)
    except baton_client.Unavailable as error:
        assert error.reason == ""
unwanted = {{"torch", "numpy", "shared", "cli", "grpc_status", "grpc_health", "prefill_service", "decode_service"}}
print(*sorted(unwanted & {{name.partition(".")[0] for name in sys.modules}}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from a copy of the sources, so that no build leftovers get into it or stay behind."""
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    for name in ("client", "protos", "LICENSE"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    command = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", str(folder / "client"), "-w", str(folder)]
    environment = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INDEX": "1", "PATH": ""}
    subprocess.run([sys.executable, "-m", "pip", *command], check=True, env=environment)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_client_protos_types_and_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("baton_client/py.typed", "baton_client/aio.py", "baton/v1/generation_pb2.pyi", "baton/v1/kv_pb2.py"):
        assert wanted in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    metadata = zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("METADATA"))).decode()
    requirements = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert sorted(line.split()[1].split("<")[0].split(">")[0] for line in requirements) == ["grpcio", "protobuf"]


def test_the_wheel_needs_grpcio_and_protobuf_only(wheel: Path, tmp_path: Path) -> None:
    unpacked, dependencies = tmp_path / "wheel", tmp_path / "dependencies"
    zipfile.ZipFile(wheel).extractall(unpacked)
    (dependencies / "google").mkdir(parents=True)
    for name in DEPENDENCIES:
        (dependencies / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    program = PROGRAM.format(wheel=unpacked, dependencies=dependencies)
    result = subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == ""
