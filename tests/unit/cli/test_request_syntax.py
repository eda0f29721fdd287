from pathlib import Path

import pytest
import typer

from baton_client import Choices, Grammar, JsonSchema, Regex
from baton_client.values import Constraint
from cli.request_syntax import parse_constraint, parse_logit_bias, parse_resumptions


def test_biases_are_ids_and_values() -> None:
    assert parse_logit_bias(["3=-1.5", " 40 = 2", "0=1e1"]) == {3: -1.5, 40: 2.0, 0: 10.0}
    assert parse_logit_bias([]) == {}


@pytest.mark.parametrize("text", ["3", "=1", "3=", "x=1", "-3=1", "3=1=2", "3:1", "3.5=1", ""])
def test_what_is_no_bias_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="ID=VALUE"):
        parse_logit_bias([text])


def test_a_bias_given_twice_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="3 comes twice"):
        parse_logit_bias(["3=1", "4=1", "3=1"])


def test_resumptions_are_indices_and_token_ids() -> None:
    assert parse_resumptions(["0=5,6", "2= [7]", "1="]) == {0: [5, 6], 2: [7], 1: []}
    with pytest.raises(typer.BadParameter, match="INDEX=IDS"):
        parse_resumptions(["0=5,x"])
    with pytest.raises(typer.BadParameter, match="1 comes twice"):
        parse_resumptions(["1=5", "1=6"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((None, None, None, ()), None),
        (("{}", None, None, ()), JsonSchema("{}")),
        ((None, "a+", None, ()), Regex("a+")),
        ((None, "@a", None, ()), Regex("@a")),
        ((None, None, 'start: "a"', ()), Grammar('start: "a"')),
        ((None, None, None, ("a", "@b")), Choices(("a", "@b"))),
        (("", None, None, ()), JsonSchema("")),
    ],
)
def test_one_constraint(
    arguments: tuple[str | None, str | None, str | None, tuple[str, ...]], expected: Constraint | None
) -> None:
    assert parse_constraint(*arguments) == expected


def test_schemas_and_grammars_may_stand_in_files(tmp_path: Path) -> None:
    file = tmp_path / "schema"
    file.write_text('{"enum": ["é"]}\n', encoding="utf-8")
    assert parse_constraint(f"@{file}", None, None, ()) == JsonSchema('{"enum": ["é"]}\n')
    assert parse_constraint(None, None, f"@{file}", ()) == Grammar('{"enum": ["é"]}\n')


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "schema"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(typer.BadParameter, match=r"cannot read .*schema"):
        parse_constraint(f"@{file}", None, None, ())


def test_two_kinds_of_constraint_are_refused_by_name() -> None:
    with pytest.raises(typer.BadParameter, match="--regex and --choice"):
        parse_constraint(None, "a", None, ("a",))
