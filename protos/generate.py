"""Writes the Python of protos/baton/v1/*.proto beside it; with --check, fails where the committed code differs."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PACKAGE = Path("baton/v1")
PATTERNS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(destination: Path) -> dict[str, str]:
    """Runs protoc into `destination` and returns the text of each generated file by name."""
    outputs = [f"--{kind}_out={destination}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    sources = [str(path) for path in sorted((ROOT / PACKAGE).glob("*.proto"))]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", *outputs, *sources]
    plugins = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(command, check=True, env=plugins)
    return read_generated(destination / PACKAGE)


def read_generated(folder: Path) -> dict[str, str]:
    """The generated files in `folder` by name."""
    return {path.name: path.read_text() for pattern in PATTERNS for path in folder.glob(pattern)}


def main() -> int:
    """Generates or checks; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the committed code is not up to date")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        wanted = generate(Path(folder))
    if check:
        stale = sorted(name for name, text in wanted.items() if read_generated(ROOT / PACKAGE).get(name) != text)
        if stale:
            sys.stderr.write(f"not up to date: {', '.join(stale)}; run `make protos`\n")
        return 1 if stale else 0
    for name, text in wanted.items():
        (ROOT / PACKAGE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
