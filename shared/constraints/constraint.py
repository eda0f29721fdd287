"""What a caller asks a completion to be, as a value."""

from dataclasses import dataclass
from enum import StrEnum

from shared.errors import InvalidRequestError, Reason


class ConstraintKind(StrEnum):
    """The fields of `Sampling.constraint`."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICES = "choices"


@dataclass(frozen=True, slots=True)
class Constraint:
    """One constraint.

    Attributes:
        source: the schema, the pattern, or the grammar; empty where there are choices.
        choices: the texts to choose from.
    """

    kind: ConstraintKind
    source: str = ""
    choices: tuple[str, ...] = ()


def constraint_refusal(constraint: Constraint, problem: str, detail: str) -> InvalidRequestError:
    """What a request gets whose constraint cannot be obeyed: CONSTRAINT_INVALID, with the field and the cause."""
    field = f"sampling.{constraint.kind}"
    return InvalidRequestError(
        f"{field} {problem}: {detail}", Reason.CONSTRAINT_INVALID, {"field": field, "detail": detail}
    )
