"""How the ladder commands print: plain columns, complete lists, bytes. No colours, no width: output may be a file."""

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

ABSENT = "–"
"""Stands where a number does not exist."""


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()) -> list[str]:
    """Lines of a table; cells are aligned to the right, except those under the headings in `left`."""
    cells = [header, *rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(header))]
    is_left = [name in left for name in header]
    return [_line(row, widths, is_left) for row in cells]


def _line(row: Sequence[str], widths: Sequence[int], is_left: Sequence[bool]) -> str:
    parts = [
        cell.ljust(width) if left else cell.rjust(width) for cell, width, left in zip(row, widths, is_left, strict=True)
    ]
    return "  ".join(parts).rstrip()


def integer_list(values: Sequence[int]) -> str:
    """A list as it stands in a config."""
    return f"[{', '.join(map(str, values))}]"


def human_bytes(num_bytes: int | None) -> str:
    """Bytes in the unit that leaves less than 1,024 of them; a dash where they are not known."""
    if num_bytes is None:
        return ABSENT
    size = float(num_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{num_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
