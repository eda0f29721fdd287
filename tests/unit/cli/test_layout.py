import json
import os
from pathlib import Path

import pytest

from cli.layout import ConfigFiles, Layout, lay_out
from shared.errors import ConfigError

SERVING = """
model: smollm2-135m-instruct
kv: {block_size: 32}
max_batch_tokens: {prefill: {prefill_text: 64}, decode: {mixed: 64}}
max_num_seqs: {prefill: 8, decode: 8}
prefill_token_buckets: {prefill: {prefill_text: [32, 64]}, decode: {mixed: [32, 64]}}
decode_batch_buckets: {decode: {decode: [1, 8]}}
"""


@pytest.fixture
def files(tmp_path: Path) -> ConfigFiles:
    contents = {
        "serving": SERVING,
        "prefill": "drain_grace_s: 20",
        "decode": "prefill_targets: [elsewhere:1]\nhost: 0.0.0.0",
    }
    paths = {name: tmp_path / f"{name}.yaml" for name in contents}
    for name, path in paths.items():
        path.write_text(contents[name])
    return ConfigFiles(**paths)


def _environments(layout: Layout) -> dict[str, dict[str, str]]:
    return {spec.name: dict(spec.environment) for spec in layout.specs}


def test_replica_i_adds_i_to_each_port(files: ConfigFiles) -> None:
    layout = lay_out(files, 2, 2, environ={})
    assert _environments(layout) == {
        "prefill-0": {
            "BATON_PREFILL__PORT": "50061",
            "BATON_PREFILL__METRICS_PORT": "9461",
            "BATON_PREFILL__PROCESSES_ON_HOST": "4",
        },
        "prefill-1": {
            "BATON_PREFILL__PORT": "50062",
            "BATON_PREFILL__METRICS_PORT": "9462",
            "BATON_PREFILL__PROCESSES_ON_HOST": "4",
        },
        "decode-0": {
            "BATON_DECODE__PORT": "50051",
            "BATON_DECODE__METRICS_PORT": "9451",
            "BATON_DECODE__PROCESSES_ON_HOST": "4",
            "BATON_DECODE__PREFILL_TARGETS": '["127.0.0.1:50061", "127.0.0.1:50062"]',
        },
        "decode-1": {
            "BATON_DECODE__PORT": "50052",
            "BATON_DECODE__METRICS_PORT": "9452",
            "BATON_DECODE__PROCESSES_ON_HOST": "4",
            "BATON_DECODE__PREFILL_TARGETS": '["127.0.0.1:50061", "127.0.0.1:50062"]',
        },
    }
    assert layout.targets == ["127.0.0.1:50051", "127.0.0.1:50052"]
    assert layout.drain_grace_s == 30, "the longer of the two"


def test_each_process_gets_its_config_files(files: ConfigFiles) -> None:
    prefill, decode = lay_out(files, 1, 1, environ={}).specs
    assert prefill.command[1:-2] == (
        *("-P", "-m", "prefill_service", "--config", str(files.prefill), "--serving", str(files.serving)),
    )
    assert decode.command[1:-2] == (
        *("-P", "-m", "decode_service", "--config", str(files.decode), "--serving", str(files.serving)),
    )
    assert (prefill.service, decode.service) == ("baton.v1.PrefillService", "baton.v1.GenerationService")


def test_each_process_knows_who_started_it(files: ConfigFiles) -> None:
    """Services outlived a `baton up` that was killed."""
    for spec in lay_out(files, 1, 1, environ={}).specs:
        assert spec.command[-2:] == ("--parent", str(os.getpid()))


def test_the_layout_names_the_place_of_prefills_pools(files: ConfigFiles, tmp_path: Path) -> None:
    assert lay_out(files, 1, 1, environ={}).shm_dir == Path("/dev/shm")
    assert lay_out(files, 1, 1, environ={"BATON_PREFILL__SHM_DIR": str(tmp_path)}).shm_dir == tmp_path


def test_without_prefill_the_configured_targets_stay(files: ConfigFiles) -> None:
    (decode,) = lay_out(files, 0, 1, environ={}).specs
    assert "BATON_DECODE__PREFILL_TARGETS" not in decode.environment


def test_ports_of_the_environment_and_free_ports(files: ConfigFiles) -> None:
    environ = {"BATON_PREFILL__PORT": "7000", "BATON_DECODE__PORT": "0"}
    prefill_0, prefill_1, decode_0, decode_1 = lay_out(files, 2, 2, environ=environ).specs
    assert (prefill_0.port, prefill_1.port) == (7000, 7001)
    assert 0 not in (decode_0.port, decode_1.port)
    assert decode_0.port != decode_1.port
    assert json.loads(decode_1.environment["BATON_DECODE__PREFILL_TARGETS"]) == ["127.0.0.1:7000", "127.0.0.1:7001"]


def test_two_processes_on_one_port_are_refused(files: ConfigFiles) -> None:
    assert len(lay_out(files, 1, 10, environ={}).specs) == 11
    with pytest.raises(ConfigError, match="prefill-0 and decode-10 would both listen on port 50061"):
        lay_out(files, 1, 11, environ={})


def test_every_config_is_checked(files: ConfigFiles, tmp_path: Path) -> None:
    for name in ("serving", "prefill", "decode"):
        with pytest.raises(ConfigError, match="kv_blocks"):
            lay_out(files, 1, 1, environ={f"BATON_{name.upper()}__KV_BLOCKS": "1"})
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        lay_out(ConfigFiles(tmp_path / "missing.yaml", files.prefill, files.decode), 1, 1, environ={})


def test_the_repositorys_own_configs_are_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    prefill, decode = lay_out(ConfigFiles(), 1, 1, environ={}).specs
    assert (prefill.port, prefill.metrics_port, decode.port, decode.metrics_port) == (50061, 9461, 50051, 9451)
