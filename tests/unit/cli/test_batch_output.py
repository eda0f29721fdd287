import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.batch_input import InputLine
from cli.batch_output import BatchOutput, Source
from shared.errors import ConfigError

SOURCE = Source("fingerprint", "float32", None, 16)
LINES = [InputLine(number, data) for number, data in ((1, b"one"), (3, b"two"), (4, b"three"))]


def write(path: Path, answers: Sequence[tuple[int, dict[str, object]]], lines: Sequence[InputLine] = LINES) -> None:
    with BatchOutput(path, SOURCE, overwrite=False) as output:
        for place, answer in answers:
            output.put(place, lines[place], f"id-{place}", answer)


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(data) for data in path.read_text().splitlines()]


def test_records_come_in_the_order_of_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with BatchOutput(path, SOURCE, overwrite=False) as output:
        output.put(1, LINES[1], "b", {"response": 2})
        assert path.read_bytes() == b"", "it waits for the first"
        output.put(0, LINES[0], "a", {"error": 1})
        assert [record["request_id"] for record in records(path)] == ["a", "b"], "written as soon as it can be"
        output.put(2, LINES[2], "c", {"response": "é"})
    assert [(r["line"], r.get("response"), r.get("error")) for r in records(path)] == [
        (1, None, 1),
        (3, 2, None),
        (4, "é", None),
    ]


def test_a_run_goes_on_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write(path, [(0, {"response": 1}), (1, {"error": 2})])
    before = path.read_bytes()
    with BatchOutput(path, SOURCE, overwrite=False) as output:
        lines = iter(LINES)
        assert output.skip_done(lines) == (2, 1)
        assert list(lines) == [LINES[2]]
        output.put(0, LINES[2], "c", {"response": 3})
    assert path.read_bytes().startswith(before)
    assert [record["line"] for record in records(path)] == [1, 3, 4]


def test_half_a_record_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write(path, [(0, {"response": 1}), (1, {"response": 2})])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        with BatchOutput(path, SOURCE, overwrite=False) as output:
            lines = iter(LINES)
            assert output.skip_done(lines) == (1, 0)
            output.put(0, next(lines), "id-1", {"response": 2})
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "lines",
    [
        [InputLine(1, b"another")],
        [InputLine(2, b"one")],
        [],
    ],
)
def test_records_of_other_lines_are_not_taken_for_answers(tmp_path: Path, lines: list[InputLine]) -> None:
    path = tmp_path / "out.jsonl"
    write(path, [(0, {"response": 1})])
    before = path.read_bytes()
    with (
        BatchOutput(path, SOURCE, overwrite=False) as output,
        pytest.raises(ConfigError, match=r"record 1 does not answer .*--overwrite"),
    ):
        output.skip_done(iter(lines))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "source",
    [
        Source("other", "float32", None, 16),
        Source("fingerprint", "bfloat16", None, 16),
        Source("fingerprint", "float32", 100, 16),
        Source("fingerprint", "float32", None, 17),
    ],
)
def test_nor_are_those_of_another_model_or_config(tmp_path: Path, source: Source) -> None:
    path = tmp_path / "out.jsonl"
    write(path, [(0, {"response": 1})])
    with (
        BatchOutput(path, source, overwrite=False) as output,
        pytest.raises(ConfigError, match="record 1 does not answer line 1"),
    ):
        output.skip_done(iter(LINES))


@pytest.mark.parametrize("content", [b"notes\n", b'{"a": 1}\n', b"[]\n", b"\xff\xfe\n"])
def test_another_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with (
        BatchOutput(path, SOURCE, overwrite=False) as output,
        pytest.raises(ConfigError, match="line 1 is no record of a batch"),
    ):
        output.skip_done(iter(LINES))
    assert path.read_bytes() == content


def test_overwriting_starts_afresh(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("notes\n")
    with BatchOutput(path, SOURCE, overwrite=True) as output:
        assert output.skip_done(iter(LINES)) == (0, 0)
    assert path.read_bytes() == b""


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with (
        BatchOutput(path, SOURCE, overwrite=False),
        pytest.raises(ConfigError, match="another run is writing it"),
    ):
        BatchOutput(path, SOURCE, overwrite=True)
    with BatchOutput(path, SOURCE, overwrite=False):
        pass


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out.jsonl: cannot be written \(No such file or directory\)"):
        BatchOutput(tmp_path / "none" / "out.jsonl", SOURCE, overwrite=False)
