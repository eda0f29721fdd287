import pytest

from cli.ladder_text import columns, human_bytes, integer_list


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("a", "1", "x"), ("bb", "1000", "")]
    assert columns(("name", "n", "why"), rows, left=("name", "why")) == [
        "name     n  why",
        "a        1  x",
        "bb    1000",
    ]


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (3 * 2**20 + 2**19, "3.5 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (7 * 2**50, "7168.0 TiB"),
    ],
)
def test_bytes_have_the_unit_that_suits_them(num_bytes: int | None, shown: str) -> None:
    assert human_bytes(num_bytes) == shown


def test_lists_are_complete() -> None:
    assert integer_list(range(1, 400)) == str(list(range(1, 400)))
    assert integer_list(()) == "[]"
