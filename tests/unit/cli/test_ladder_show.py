"""`baton ladder show`: the resolved form, as text and as JSON, with and without a model."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from typer.testing import CliRunner, Result

from cli.ladder_bytes import ModelSizes
from cli.main import app
from shared.config.load import load_serving
from shared.config.resolve import resolve

CONFIG = """
model: {model}
dtype: float32
kv: {{block_size: 16}}
max_batch_tokens: {{prefill: 100, decode: 40}}
long_prefill_token_threshold: 30
max_partial_prefills: 1
local_prefill_max_tokens: null
max_num_seqs: {{prefill: 3, decode: 5}}
prefill_token_buckets: {{prefill: {{prefill_text: [32, 64, 128, 256, 512]}}, decode: {{mixed: [48]}}}}
"""


def _run(tmp_path: Path, config: str, *options: str) -> Result:
    files = {"serving": config, "prefill": "num_kv_blocks: 10", "decode": "num_kv_blocks: 20"}
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    arguments = ["--serving", str(tmp_path / "serving.yaml")]
    for node in ("prefill", "decode"):
        arguments += [f"--{node}-config", str(tmp_path / f"{node}.yaml")]
    return CliRunner().invoke(app, ["ladder", "show", *arguments, *options])


def _json(tmp_path: Path, config: str) -> Any:
    result = _run(tmp_path, config, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def test_the_text_without_a_model(tmp_path: Path) -> None:
    result = _run(tmp_path, CONFIG.format(model="no-such-model"))
    digest = resolve(load_serving(tmp_path / "serving.yaml", environ={})).digest()
    assert result.exit_code == 0
    *lines, last = result.stdout.splitlines()
    assert lines == [
        "node     walk            step budget  offline budget  rungs  dropped  buffers",
        "prefill  prefill_text            100              30      3        2        –",
        "decode   decode        a token a row               –      4        0        –",
        "decode   mixed                    40              30      1        0        –",
        "decode   prefill_text             40              30      1        0        –",
        "",
        "prefill.prefill_text: tokens [32, 64, 128]",
        "prefill.prefill_text: dropped [256, 512], as 128 holds the budget of 100",
        "decode.decode: rows [1, 2, 4, 8]",
        "decode.mixed: tokens [48]",
        "decode.prefill_text: inside of mixed, shares its budget, and its rungs",
        "",
        "max_num_seqs.prefill          3",
        "max_num_seqs.decode           5",
        "long_prefill_token_threshold  30",
        "max_partial_prefills          1",
        "local_prefill_max_tokens      null (always)",
        "kv.block_size                 16",
        "model                         no-such-model",
        "dtype                         float32",
        "weights                       dtype",
        "kernels                       auto",
        f"digest                        {digest}",
        "",
    ]
    assert last.startswith("no bytes: 'no-such-model' is no directory")


def test_the_json_without_a_model(tmp_path: Path) -> None:
    shown = _json(tmp_path, CONFIG.format(model="no-such-model"))
    reason = shown.pop("bytes_unknown")
    assert reason.startswith("'no-such-model' is no directory")
    walks = {(walk.pop("node"), walk.pop("walk")): walk for walk in shown.pop("walks")}
    assert walks["prefill", "prefill_text"] == {
        "unit": "tokens",
        "step_budget": 100,
        "offline_budget": 30,
        "rungs": [32, 64, 128],
        "dropped": [256, 512],
        "combined_walk": None,
        "has_own_rungs": True,
        "buffer_bytes": None,
    }
    assert walks["decode", "prefill_text"] == {
        "unit": "tokens",
        "step_budget": 40,
        "offline_budget": 30,
        "rungs": [48],
        "dropped": [],
        "combined_walk": "mixed",
        "has_own_rungs": False,
        "buffer_bytes": None,
    }
    assert walks["decode", "decode"]["unit"] == "rows"
    unknown = {"buffers": None, "buffer_bytes": None, "kv_pool_bytes": None}
    assert shown.pop("nodes") == {
        "prefill": {"max_num_seqs": 3, "num_kv_blocks": 10, **unknown},
        "decode": {"max_num_seqs": 5, "num_kv_blocks": 20, **unknown},
    }
    assert shown == {
        "file": str(tmp_path / "serving.yaml"),
        "model": "no-such-model",
        "dtype": "float32",
        "weights": "dtype",
        "kernels": "auto",
        "long_prefill_token_threshold": 30,
        "max_partial_prefills": 1,
        "local_prefill_max_tokens": None,
        "block_size": 16,
        "digest": resolve(load_serving(tmp_path / "serving.yaml", environ={})).digest(),
        "cautions": [],
        "variables": [],
    }


def test_bytes_are_those_that_the_engine_tells(tmp_path: Path, tiny_llama_dir: Path) -> None:
    shown = _json(tmp_path, CONFIG.format(model=tiny_llama_dir))
    serving = load_serving(tmp_path / "serving.yaml", environ={})
    resolved, sizes = resolve(serving), ModelSizes.of(serving)
    assert shown["bytes_unknown"] is None
    prefill = sizes.step_buffers(resolved.walks_of("prefill"), 3)
    assert shown["nodes"]["prefill"]["buffer_bytes"] == prefill.total
    assert sum(shown["nodes"]["prefill"]["buffers"].values()) == prefill.total
    assert shown["nodes"]["decode"]["buffer_bytes"] == sizes.step_buffers(resolved.walks_of("decode"), 5).total
    by_walk = {(walk["node"], walk["walk"]): walk["buffer_bytes"] for walk in shown["walks"]}
    assert by_walk["prefill", "prefill_text"] == prefill.total
    assert by_walk["decode", "decode"] < by_walk["decode", "mixed"]
    assert by_walk["decode", "prefill_text"] is None


def test_a_pool_holds_keys_and_values_of_all_layers(tmp_path: Path, tiny_llama_dir: Path) -> None:
    """Two layers, two KV heads of 16 values of four bytes, blocks of 16 tokens."""
    block_bytes = 2 * 2 * 2 * 16 * 16 * 4
    shown = _json(tmp_path, CONFIG.format(model=tiny_llama_dir))["nodes"]
    difference = shown["decode"]["kv_pool_bytes"] - shown["prefill"]["kv_pool_bytes"]
    assert 10 * block_bytes <= difference < 10 * block_bytes + 8192, "what is more is bookkeeping"


def test_the_text_has_bytes_in_units(tmp_path: Path, tiny_llama_dir: Path) -> None:
    result = _run(tmp_path, CONFIG.format(model=tiny_llama_dir))
    assert result.exit_code == 0
    *_, header, prefill, decode = result.stdout.splitlines()
    assert header.split() == ["node", "step", "buffers", "KV", "pool", "blocks"]
    assert prefill.split()[0] == "prefill"
    assert prefill.split()[-1] == "10"
    assert decode.split()[-1] == "20"
    assert "KiB" in decode


def test_auto_is_told_as_what_it_is_here(tmp_path: Path, tiny_llama_dir: Path) -> None:
    shown = _json(tmp_path, f"model: {tiny_llama_dir}\ndtype: auto")
    assert shown["dtype"] in ("float32", "bfloat16")
    assert _json(tmp_path, "model: no-such-model\ndtype: auto")["dtype"] is None


def test_a_walk_inside_the_combined_walk_may_have_rungs_of_its_own(tmp_path: Path) -> None:
    config = "model: no-such-model\nprefill_token_buckets: {decode: {prefill_text: [64, 512, 1024]}}"
    lines = _run(tmp_path, config).stdout.splitlines()
    assert lines[lines.index("decode.prefill_text: tokens [64, 512]") - 1] == (
        "decode.prefill_text: inside of mixed, shares its budget, has rungs of its own"
    )
    assert "decode.prefill_text: dropped [1024], as 512 holds the budget of 512" in lines


def test_prompts_that_are_not_chunked(tmp_path: Path) -> None:
    result = _run(tmp_path, "model: no-such-model\nmax_batch_tokens: {prefill: {prefill_text: null}}")
    assert result.stdout.splitlines()[1].split() == ["prefill", "prefill_text", "not", "chunked", "–", "7", "0", "–"]


def test_long_ladders_are_whole_whatever_the_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    rungs = list(range(8, 1601, 8))
    config = f"model: no-such-model\nprefill_token_buckets: {{prefill: {{prefill_text: {rungs}}}}}"
    assert f"prefill.prefill_text: tokens {rungs}" in _run(tmp_path, config).stdout.splitlines()


def test_cautions_and_variables_go_to_standard_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_SERVING__MAX_BATCH_TOKENS__DECODE__MIXED", "8")
    result = _run(tmp_path, "model: no-such-model\nmax_num_seqs: {decode: 8}")
    caution, note = result.stderr.splitlines()
    assert caution.startswith("caution: max_batch_tokens.decode.mixed is 8 and max_num_seqs.decode is 8: ")
    assert note == (f"note: BATON_SERVING__MAX_BATCH_TOKENS__DECODE__MIXED overrides what {tmp_path}/serving.yaml says")
    shown = _json(tmp_path, "model: no-such-model\nmax_num_seqs: {decode: 8}")
    assert len(shown["cautions"]) == 1
    assert shown["variables"] == ["BATON_SERVING__MAX_BATCH_TOKENS__DECODE__MIXED"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Hugging Face models, and no way to fill it."""

    def no_download(*_: object, **__: object) -> str:
        raise AssertionError("downloads a model")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_download)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_hugging_face_id_is_not_downloaded(tmp_path: Path, hub: Path) -> None:
    assert not hub.exists()
    assert _json(tmp_path, "model: org/name")["bytes_unknown"] == "org/name has not been downloaded"
    assert _json(tmp_path, "model: org/na--me..")["bytes_unknown"] == (
        "'org/na--me..' is no directory and no Hugging Face id"
    )


def test_a_hugging_face_id_that_has_been_downloaded_is_found(tmp_path: Path, hub: Path, tiny_llama_dir: Path) -> None:
    snapshot = hub / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (hub / "models--org--name" / "refs").mkdir()
    (hub / "models--org--name" / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text((tiny_llama_dir / "config.json").read_text())
    assert _json(tmp_path, "model: org/name")["bytes_unknown"] is None


def test_a_model_that_cannot_be_served_so_long_is_a_reason(tmp_path: Path, tiny_llama_dir: Path) -> None:
    shown = _json(tmp_path, f"model: {tiny_llama_dir}\nmax_model_len: 4096")
    assert shown["bytes_unknown"] == "max_model_len is 4096; this model serves 1 to 1024"


def test_wrong_configs_are_2(tmp_path: Path) -> None:
    result = _run(tmp_path, "kv: 1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {tmp_path}/serving.yaml: kv: found 1; needs a mapping with the key block_size\n"
    missing = str(tmp_path / "missing.yaml")
    result = CliRunner().invoke(app, ["ladder", "show", "--prefill-config", missing])
    assert (result.exit_code, result.stdout) == (2, "")
