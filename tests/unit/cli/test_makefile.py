import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[3] / "Makefile"
STAND_IN = """#!/bin/sh
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/baton" ;;
  "-m pip"|"model import"|"-m shared.engine.kernels.build") echo "did $*" ;;
  "-c "*) exit "${TOO_OLD:-0}" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose Python only says what it was asked to do."""
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / "pyproject.toml").touch()
    kernels = tmp_path / "shared" / "engine" / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "kernels.cpp").touch()
    (kernels / "build.py").touch()
    (tmp_path / "python").write_text(STAND_IN)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def _make(checkout: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["make", f"PYTHON={checkout / 'python'}", *arguments],
        cwd=checkout,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_setup_says_what_it_does_before_each_long_step(checkout: Path) -> None:
    assert _make(checkout, "setup").stdout.splitlines() == [
        "Making a Python environment in .venv",
        "Installing packages into .venv: a minute or two where they have to be downloaded",
        "did -m pip install --quiet --editable .",
        "did -m shared.engine.kernels.build",
        "Fetching and converting the default model, once",
        "did model import smollm2-135m-instruct",
    ]
    assert _make(checkout, "setup").stdout.splitlines() == ["did -m shared.engine.kernels.build"], "it looks again"


def test_an_old_python_is_refused(checkout: Path) -> None:
    for arguments in ([], ["PYTHON="]):
        result = _make(checkout, "setup", *arguments, TOO_OLD="1")
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("Baton needs Python 3.11 or newer; set PYTHON=/path/to/python3.11\n")
    assert not (checkout / ".venv").exists()
