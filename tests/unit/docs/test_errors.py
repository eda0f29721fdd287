from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from baton_client.errors import BatonClientError, error_from_rpc
from shared.errors import Reason
from shared.rpc.status import STATUS_OF

PAGE = Path(__file__).parents[3] / "docs/errors.md"


@dataclass(frozen=True)
class Row:
    reason: str
    status: str
    python: str


def rows() -> list[Row]:
    """The reasons that docs/errors.md lists."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0].isupper():
            found.append(Row(cells[0], cells[1], cells[5]))
    return found


def status_of(reason: Reason) -> grpc.StatusCode:
    (code,) = {code for kind, code in STATUS_OF.items() if reason in kind.reasons}
    return code


class Failed(grpc.RpcError):
    """A call that failed with a status."""

    def __init__(self, status: grpc.StatusCode) -> None:
        self.status = status

    def code(self) -> grpc.StatusCode:
        return self.status

    def details(self) -> str:
        return ""

    def trailing_metadata(self) -> tuple[()]:
        return ()


def test_the_page_has_every_reason_once() -> None:
    assert sorted(row.reason for row in rows()) == sorted(Reason)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.reason)
def test_a_reason_has_the_status_and_the_exception_that_the_page_says(row: Row) -> None:
    status = status_of(Reason(row.reason))
    raised = error_from_rpc(Failed(status))
    assert isinstance(raised, BatonClientError)
    assert (row.status, row.python) == (status.name, type(raised).__name__)
