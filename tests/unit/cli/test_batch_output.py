import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.batch_input import InputLine
from cli.batch_output import BatchOutput, Source
from shared.errors import ConfigError

SOURCE = Source("fingerprint", "float32", "dtype", "auto", None, 16)
LINES = [InputLine(number, data) for number, data in ((1, b"one"), (3, b"two"), (4, b"three"), (5, b"four"))]
NUMBERS = [line.number for line in LINES]


def answer(line: InputLine) -> dict[str, object]:
    return {"response": f"to {line.data!r}"}


def run(
    path: Path, lines: Sequence[InputLine] = LINES, failing: Sequence[int] = (), stop_after: int | None = None
) -> list[int]:
    """Asks lines in order, one at a time; returns the numbers of those that were asked."""
    asked: list[int] = []
    with BatchOutput(path, SOURCE, overwrite=False) as output:
        for line in output.unanswered(iter(lines)):
            if len(asked) == stop_after:
                break
            output.put(line, f"id-{line.number}", {"error": 1} if line.number in failing else answer(line))
            asked.append(line.number)
    return asked


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(data) for data in path.read_text().splitlines()]


def early(path: Path) -> Path:
    return path.with_name(f"{path.name}.early")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where an output is written; nothing is left beside it once it is whole."""
    path = tmp_path / "out.jsonl"
    yield path
    if path.exists() and len(path.read_bytes().splitlines()) == len(LINES):
        assert not early(path).exists()


def test_records_come_in_the_order_of_the_lines(path: Path) -> None:
    with BatchOutput(path, SOURCE, overwrite=False) as output:
        one, two, three, four = output.unanswered(iter(LINES))
        output.put(two, "b", {"response": "é"})
        output.put(four, "d", {"response": 4})
        assert path.read_bytes() == b"", "they wait for the first"
        output.put(one, "a", {"error": 1})
        assert [record["request_id"] for record in records(path)] == ["a", "b"], "written as soon as it can be"
        output.put(three, "c", {"response": 3})
    assert [(r["line"], r.get("response"), r.get("error")) for r in records(path)] == [
        (1, None, 1),
        (3, "é", None),
        (4, 3, None),
        (5, 4, None),
    ]


@pytest.mark.parametrize("num_before", range(5))
def test_a_run_goes_on_behind_what_is_there(path: Path, num_before: int) -> None:
    assert run(path, stop_after=num_before) == NUMBERS[:num_before]
    before = path.read_bytes()
    assert run(path) == NUMBERS[num_before:]
    assert path.read_bytes().startswith(before)
    assert [record["line"] for record in records(path)] == NUMBERS
    assert run(path) == []


def test_what_was_answered_before_its_turn_is_not_asked_again(path: Path) -> None:
    with BatchOutput(path, SOURCE, overwrite=False) as output:
        one, two, three, _ = output.unanswered(iter(LINES))
        output.put(three, "c", answer(three))
        output.put(two, "b", answer(two))
    assert path.read_bytes() == b""
    assert run(path, stop_after=0) == []
    assert run(path) == [1, 5]
    assert [(record["line"], record["response"]) for record in records(path)] == [
        (line.number, answer(line)["response"]) for line in LINES
    ]
    del one


def test_lines_that_changed_meanwhile_are_asked_again(path: Path) -> None:
    with BatchOutput(path, SOURCE, overwrite=False) as output:
        _, two, three, _ = output.unanswered(iter(LINES))
        output.put(two, "b", answer(two))
        output.put(three, "c", answer(three))
    changed = [LINES[0], LINES[1], InputLine(4, b"another"), LINES[3]]
    assert run(path, changed) == [1, 4, 5]
    assert records(path)[2]["response"] == answer(changed[2])["response"]


def test_errors_are_asked_again_and_answers_behind_them_are_kept(path: Path) -> None:
    assert run(path, failing=[3, 5]) == NUMBERS
    assert run(path, failing=[5]) == [3, 5]
    assert [("error" in record, record["line"]) for record in records(path)] == [
        (False, 1),
        (False, 3),
        (False, 4),
        (True, 5),
    ]
    mended = [*LINES[:3], InputLine(5, b"mended")]
    assert run(path, mended) == [5]
    assert records(path)[-1]["response"] == answer(mended[3])["response"]


def test_half_a_record_is_done_again(path: Path) -> None:
    run(path)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    second = whole.index(b"\n", first) + 1
    for length in range(first, second):
        path.write_bytes(whole[:length])
        assert run(path) == NUMBERS[1:]
        assert path.read_bytes() == whole
    for length in range(first):
        path.write_bytes(whole[:length])
        assert run(path) == NUMBERS
        assert path.read_bytes() == whole


def test_half_an_early_record_is_done_again(path: Path) -> None:
    with BatchOutput(path, SOURCE, overwrite=False) as output:
        _, two, three, _ = output.unanswered(iter(LINES))
        output.put(two, "b", answer(two))
        output.put(three, "c", answer(three))
    early(path).write_bytes(early(path).read_bytes()[:-5])
    assert run(path) == [1, 4, 5]
    assert [record["line"] for record in records(path)] == NUMBERS


@pytest.mark.parametrize("lines", [[InputLine(1, b"another")], [InputLine(2, b"one")], []])
def test_records_of_other_lines_are_not_taken_for_answers(path: Path, lines: list[InputLine]) -> None:
    run(path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"record 1 does not answer .*--overwrite"):
        run(path, lines)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "source",
    [
        replace(SOURCE, model_fingerprint="other"),
        replace(SOURCE, dtype="bfloat16"),
        replace(SOURCE, weights="int8"),
        replace(SOURCE, kernels="torch"),
        replace(SOURCE, max_model_len=100),
        replace(SOURCE, default_max_tokens=17),
    ],
)
def test_nor_are_those_of_another_model_or_config(path: Path, source: Source) -> None:
    run(path)
    with (
        BatchOutput(path, source, overwrite=False) as output,
        pytest.raises(ConfigError, match="record 1 does not answer line 1"),
    ):
        next(output.unanswered(iter(LINES)))


@pytest.mark.parametrize(
    "content", [b"notes\n", b"notes", b'{"a": 1}\n', b'{"a": 1}', b"[]\n", b"\xff\xfe\n", b'{"line": 1, "a": 2}']
)
def test_another_file_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds something else than records of a batch"):
        run(path)
    assert path.read_bytes() == content
    assert not early(path).exists()


def test_overwriting_starts_afresh(path: Path) -> None:
    path.write_text("notes\n")
    early(path).write_text("more\n")
    with BatchOutput(path, SOURCE, overwrite=True) as output:
        assert list(output.unanswered(iter(LINES))) == LINES
    assert path.read_bytes() == b""
    assert not early(path).exists()


def test_two_runs_do_not_write_one_file(path: Path) -> None:
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
