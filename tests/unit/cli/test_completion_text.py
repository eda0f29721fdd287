import sys
from pathlib import Path

import pytest
import typer

from cli.completion_text import CompletionText, write


def _shown(has_headings: bool, *pieces: tuple[int, str | None]) -> list[str]:
    """What is written, piece by piece, of texts and ends (None) of completions."""
    written: list[str] = []
    text = CompletionText(has_headings, written.append)
    for index, piece in pieces:
        if piece is None:
            text.end(index)
        else:
            text.add(index, piece)
    written.append("|")
    text.flush()
    return written


def test_one_completion_is_written_as_it_comes_and_ends_its_line() -> None:
    assert _shown(False, (0, "a"), (0, ""), (0, "b"), (0, None)) == ["a", "b", "\n", "|"]
    assert _shown(False, (0, "a\n"), (0, None)) == ["a\n", "|"]
    assert _shown(False, (0, ""), (0, None)) == ["|"]
    assert _shown(False, (0, "a")) == ["a", "|", "\n"]


def test_several_come_in_order_of_their_indices() -> None:
    pieces = [(0, "a"), (1, "x"), (2, "p\n"), (1, "y"), (2, None), (0, None), (1, "z"), (1, None)]
    assert _shown(True, *pieces) == [
        "--- completion 0 ---\n",
        "a",
        "\n",
        "--- completion 1 ---\n",
        "xy",
        "z",
        "\n",
        "--- completion 2 ---\n",
        "p\n",
        "|",
    ]


def test_what_is_kept_is_written_though_nothing_ends() -> None:
    assert "".join(_shown(True, (2, "p"), (1, "x"), (0, "a"))) == (
        "--- completion 0 ---\na|\n--- completion 1 ---\nx\n--- completion 2 ---\np\n"
    )


def test_an_empty_completion_has_its_heading() -> None:
    assert "".join(_shown(True, (0, None), (1, "x"), (1, None))) == ("--- completion 0 ---\n--- completion 1 ---\nx\n|")


def test_an_end_that_comes_twice_changes_nothing() -> None:
    assert "".join(_shown(True, (0, "a"), (0, None), (0, None), (1, "x"), (1, None))) == (
        "--- completion 0 ---\na\n--- completion 1 ---\nx\n|"
    )


def test_an_output_that_takes_no_more_is_one_line_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(typer.Exit) as caught:
            write("a")
        write("b")
    assert caught.value.exit_code == 1
    assert capsys.readouterr().err == "error: cannot write to standard output: No space left on device\n"


def test_an_output_that_was_closed_from_the_beginning_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    write("a")
