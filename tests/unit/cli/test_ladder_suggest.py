"""`baton ladder suggest`: through the command, with small traces."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.ladder_text import human_bytes
from cli.main import app

SERVING = "# ours\nmodel: {model}\nmax_batch_tokens: {{prefill: 100, decode: {{mixed: 64}}}}  # tokens\n"
VARIABLE = "BATON_SERVING__PREFILL_TOKEN_BUCKETS__PREFILL__PREFILL_TEXT"


@pytest.fixture
def serving(tmp_path: Path) -> Path:
    file = tmp_path / "serving.yaml"
    file.write_text(SERVING.format(model="no-such-model"))
    return file


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens\n1,30\n2,30\n3,64\n4,100\n5,250\n")
    return file


def _run(serving: Path, trace: Path, *options: str) -> Result:
    arguments = ["--serving", str(serving), "--trace", str(trace), *options]
    return CliRunner().invoke(app, ["ladder", "suggest", *arguments])


def _json(serving: Path, trace: Path, *options: str) -> Any:
    result = _run(serving, trace, *options, "--json")
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_the_text(serving: Path, trace: Path) -> None:
    result = _run(serving, trace, "--rungs", "2")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{trace}, column ContextTokens: 5 prompts, 474 tokens",
        "cut at 100: 7 steps",
        "",
        "ladder                 rungs  padding/real  steps unpadded  buffers",
        "suggested                  2        0.1603           57.1%        –",
        "today                      3        0.2152           14.3%        –",
        "powers of two from 32      3        0.2152           14.3%        –",
        "",
        "suggested: [50, 100]",
        "today: [32, 64, 128]",
        "powers of two from 32: [32, 64, 128]",
        "",
        "prefill_token_buckets:",
        "  prefill:",
        "    prefill_text: [50, 100]",
    ]
    (note,) = result.stderr.splitlines()
    assert note.startswith("note: no bytes of buffers: 'no-such-model' is no directory")


def test_the_json(serving: Path, trace: Path) -> None:
    shown = _json(serving, trace, "--rungs", "2")
    assert shown.pop("notes")[0].startswith("no bytes of buffers: ")
    suggested = {
        "rungs": [50, 100],
        "padding_ratio": 76 / 474,
        "num_padding_tokens": 76,
        "unpadded_share": 4 / 7,
        "num_steps_above": 0,
    }
    assert shown["ladders"].pop("suggested") == {**suggested, "buffer_bytes": None}
    assert shown["ladders"].pop("today") == shown["ladders"].pop("powers of two from 32")
    assert shown.pop("ladders") == {}
    assert shown.pop("padding_ratio_by_num_rungs") == {"1": 226 / 474, "2": 76 / 474, "3": 14 / 474, "4": 0.0}
    assert shown == {
        "serving": str(serving),
        "node": "prefill",
        "walk": "prefill_text",
        "budget": 100,
        "alignment": 1,
        "max_num_rungs": 2,
        "trace": {"file": str(trace), "column": "ContextTokens", "num_prompts": 5, "num_empty_rows": 0},
        "num_steps": 7,
        "num_tokens": 474,
        "plot": None,
        "written": None,
    }


def test_bytes_grow_with_the_top_rung(serving: Path, trace: Path, tiny_llama_dir: Path) -> None:
    serving.write_text(SERVING.format(model=tiny_llama_dir))
    ladders = _json(serving, trace, "--rungs", "2")["ladders"]
    assert 0 < ladders["suggested"]["buffer_bytes"] < ladders["today"]["buffer_bytes"]
    assert human_bytes(ladders["today"]["buffer_bytes"]) in _run(serving, trace, "--rungs", "2").stdout


def test_options_reach_the_comparison(serving: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"n": 30, "m": 1}\n{"n": 0, "m": 1}\n')
    shown = _json(serving, trace, "--rungs", "1", "--column", "n", "--walk", "mixed", "--budget", "33", "--align", "8")
    assert (shown["node"], shown["walk"], shown["budget"], shown["alignment"]) == ("decode", "mixed", 33, 8)
    assert shown["ladders"]["suggested"]["rungs"] == [40]
    assert shown["trace"]["num_empty_rows"] == 1


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ((), ["prefill", "prefill_text"]),
        (("--node", "prefill"), ["prefill", "prefill_text"]),
        (("--node", "decode"), ["decode", "mixed"]),
        (("--walk", "mixed"), ["decode", "mixed"]),
        (("--node", "decode", "--walk", "prefill_text"), ["decode", "prefill_text"]),
    ],
)
def test_node_and_walk_imply_each_other(options: tuple[str, ...], key: list[str], serving: Path, trace: Path) -> None:
    shown = _json(serving, trace, "--rungs", "1", *options)
    assert [shown["node"], shown["walk"]] == key


def test_rungs_are_written_and_the_file_keeps_the_rest(serving: Path, trace: Path) -> None:
    result = _run(serving, trace, "--rungs", "2", "--write")
    assert result.exit_code == 0
    assert serving.read_text() == SERVING.format(model="no-such-model") + (
        "prefill_token_buckets:\n  prefill:\n    prefill_text: [50, 100]\n"
    )
    assert f"note: {serving} now has these rungs; services that run keep theirs" in result.stderr
    again = _json(serving, trace, "--rungs", "2")
    assert again["ladders"]["today"] == again["ladders"]["suggested"]


def test_written_rungs_of_another_budget_are_cautioned_about(serving: Path, trace: Path) -> None:
    result = _run(serving, trace, "--rungs", "2", "--write", "--budget", "64")
    assert "note: prefill.prefill_text may run steps of 100 tokens and its top rung is 64" in result.stderr
    shown = _json(serving, trace, "--rungs", "3", "--write", "--budget", "250")
    assert shown["written"] == str(serving)
    assert shown["ladders"]["suggested"]["rungs"] == [30, 100, 250]
    assert f"of prefill.prefill_text [250] will be dropped, above its budget in {serving}" in shown["notes"]


def test_a_variable_that_hides_what_is_written_is_named(
    serving: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "[50, 200]")
    shown = _json(serving, trace, "--rungs", "2", "--write")
    assert shown["ladders"]["today"]["rungs"] == [50, 200]
    assert f"{VARIABLE} sets today's ladder, not {serving}" in shown["notes"]
    assert "prefill_text: [50, 100]" in serving.read_text()


def test_a_file_that_cannot_be_edited_in_place_stays(serving: Path, trace: Path) -> None:
    text = "prefill_token_buckets: {prefill: {prefill_text: &r [64]}, decode: {mixed: *r}}"
    serving.write_text(text)
    result = _run(serving, trace, "--rungs", "2", "--write")
    assert result.exit_code == 2
    assert "found a form that cannot be edited without changing more" in result.stderr
    assert serving.read_text() == text


def test_a_write_that_fails_is_1(serving: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_rungs(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("cli.ladder_suggest.write_rungs", no_rungs)
    result = _run(serving, trace, "--rungs", "2", "--write")
    assert result.exit_code == 1
    assert f"error: {serving}: cannot be written (Read-only file system)" in result.stderr
    assert "suggested: [50, 100]" in result.stdout, "what was found is not lost"


@pytest.mark.parametrize(("suffix", "beginning"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_a_plot_is_drawn(suffix: str, beginning: bytes, serving: Path, trace: Path, tmp_path: Path) -> None:
    plot = tmp_path / f"p.{suffix}"
    result = _run(serving, trace, "--rungs", "2", "--plot", str(plot))
    assert result.exit_code == 0
    assert f"plot: {plot}" in result.stderr
    assert plot.read_bytes().startswith(beginning)


def test_a_plot_of_no_padding_at_all_is_drawn(serving: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("100\n")
    assert _run(serving, trace, "--rungs", "1", "--plot", str(tmp_path / "p.png")).exit_code == 0


def test_a_plot_that_cannot_be_written_is_1(serving: Path, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "p.png").mkdir()
    result = _run(serving, trace, "--rungs", "2", "--plot", str(tmp_path / "p.png"))
    assert result.exit_code == 1
    assert f"error: {tmp_path}/p.png: cannot be written (Is a directory)" in result.stderr


BAD_USAGE = {
    "no rungs": ("--rungs", "0"),
    "negative rungs": ("--rungs", "-1"),
    "half a rung": ("--rungs", "1.5"),
    "no alignment": ("--rungs", "1", "--align", "0"),
    "no budget": ("--rungs", "1", "--budget", "0"),
    "budget beyond what a config takes": ("--rungs", "1", "--budget", "2147483648"),
    "mixed on prefill": ("--rungs", "1", "--node", "prefill", "--walk", "mixed"),
    "a walk in rows": ("--rungs", "1", "--walk", "decode"),
    "plot of an unknown kind": ("--rungs", "1", "--plot", "p.exe"),
    "plot without a kind": ("--rungs", "1", "--plot", "png"),
    "plot in no directory": ("--rungs", "1", "--plot", "/no/such/directory/p.png"),
}


@pytest.mark.parametrize("name", BAD_USAGE)
def test_bad_usage_is_2_before_anything_is_read(name: str, serving: Path, tmp_path: Path) -> None:
    result = _run(serving, tmp_path / "missing.csv", *BAD_USAGE[name])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "missing.csv" not in result.stderr


def test_a_bad_trace_is_2_with_its_line(serving: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("ContextTokens\n12\n-3\n")
    result = _run(serving, trace, "--rungs", "1", "--write")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f'error: {trace}: line 3: found "-3"; needs a number of tokens from 0 to 1000000000\n'
    assert serving.read_text() == SERVING.format(model="no-such-model")


def test_a_bad_config_is_2(serving: Path, trace: Path) -> None:
    serving.write_text("prefill_token_buckets: {prefill: {prefill_text: []}}")
    result = _run(serving, trace, "--rungs", "1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "prefill_token_buckets.prefill.prefill_text: found an empty list" in result.stderr


def test_rungs_that_a_config_does_not_take_are_not_written(serving: Path, trace: Path) -> None:
    text = serving.read_text()
    result = _run(serving, trace, "--rungs", "1", "--budget", "2147483647", "--align", "2147483646", "--write")
    assert result.exit_code == 2
    assert "found 4294967292 at position 1; needs a list of ascending integers ≥ 1, each an integer" in result.stderr
    assert serving.read_text() == text


def test_long_ladders_are_whole_and_without_colours(serving: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("".join(f"{length}\n" for length in range(1, 101)))
    result = CliRunner(env={"COLUMNS": "20", "FORCE_COLOR": "1"}).invoke(
        app, ["ladder", "suggest", "--serving", str(serving), "--trace", str(trace), "--rungs", "100"]
    )
    assert f"    prefill_text: {list(range(1, 101))}" in result.stdout.splitlines()
    assert "\x1b" not in result.stdout


def test_the_picture_library_is_imported_only_to_draw(
    serving: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cli.ladder_plot", None)  # an import of it fails
    assert _run(serving, trace, "--rungs", "2").exit_code == 0


def test_ctrl_c_while_a_trace_is_read_is_130_and_silent(serving: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    os.mkfifo(trace)
    command = [sys.executable, "-c", "from cli.main import main; main()", "ladder", "suggest"]
    command += ["--serving", str(serving), "--trace", str(trace), "--rungs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with trace.open("w"):  # opens when the command does
        process.send_signal(signal.SIGINT)
        assert process.communicate() == (b"", b"")
    assert process.returncode == 130
