import io
from pathlib import Path

from rich.console import Console

from cli.ladder_progress import ReadingBar


def _shown(tmp_path: Path, seconds: list[float], *, is_terminal: bool) -> str:
    file = tmp_path / "trace.csv"
    file.write_bytes(b"x" * 4000)
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=80, color_system=None)
    now = iter([0.0, *seconds])
    with ReadingBar(file, console, lambda: next(now)) as bar:
        for _ in seconds:
            bar.move(1000)
    return output.getvalue()


def test_a_long_read_shows_how_far_it_is(tmp_path: Path) -> None:
    shown = _shown(tmp_path, [0.5, 1.5], is_terminal=True)
    assert "reading trace.csv" in shown
    assert "1.0/4.0 kB" in shown


def test_a_short_read_shows_nothing(tmp_path: Path) -> None:
    assert _shown(tmp_path, [0.5, 0.9], is_terminal=True) == ""


def test_a_file_for_output_gets_no_bar(tmp_path: Path) -> None:
    assert _shown(tmp_path, [5.0, 9.0], is_terminal=False) == ""
