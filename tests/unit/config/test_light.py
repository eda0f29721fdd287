import subprocess
import sys
from pathlib import Path

import pytest

from shared.config.load import load_decode, load_prefill
from shared.config.services import DecodeServiceConfig, PrefillServiceConfig

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "module",
    [
        "shared.config.load",
        "shared.config.notice",
        "shared.config.write",
        "shared.planning",
        "shared.ladder",
        "shared.ladder.suggest",
        "shared.ladder.trace",
    ],
)
def test_config_and_planning_are_read_without_heavy_imports(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'grpc', 'numpy', 'google.protobuf'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize("package", ["planning", "ladder"])
def test_planning_and_ladders_know_no_clock(package: str) -> None:
    sources = sorted((ROOT / "shared" / package).glob("*.py"))
    assert sources
    for source in sources:
        text = source.read_text()
        assert "import time" not in text
        assert "datetime" not in text


def test_the_shipped_service_configs_hold_the_defaults() -> None:
    assert load_prefill(ROOT / "configs" / "prefill.yaml", environ={}) == PrefillServiceConfig()
    assert load_decode(ROOT / "configs" / "decode.yaml", environ={}) == DecodeServiceConfig()


@pytest.mark.parametrize(
    ("file", "model"), [("prefill.yaml", PrefillServiceConfig), ("decode.yaml", DecodeServiceConfig)]
)
def test_the_shipped_service_configs_name_every_key(
    file: str, model: type[PrefillServiceConfig | DecodeServiceConfig]
) -> None:
    text = (ROOT / "configs" / file).read_text()
    for key in model.model_fields:
        assert f"\n{key}:" in text
