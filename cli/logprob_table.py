"""Log-probabilities as a table on the terminal."""

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from baton_client import TokenLogprob, TokenLogprobs


def print_logprobs(title: str, positions: Sequence[TokenLogprobs]) -> None:
    """Prints a row for each token: what it reads as, its log-probability and rank, and the most likely tokens there."""
    number = {"justify": "right", "no_wrap": True}
    table = Table(
        Column("token", overflow="fold"),
        Column("id", **number),  # type: ignore[arg-type]  # a dictionary's values have one type
        Column("logprob", **number),  # type: ignore[arg-type]
        Column("rank", **number),  # type: ignore[arg-type]
        Column("most likely", overflow="fold"),
        title=title,
        title_justify="left",
    )
    for position in positions:
        token = position.token
        cells = (_quoted(token), str(token.token_id), f"{token.logprob:.3f}", str(token.rank), _likely(position))
        table.add_row(*map(Text, cells))
    Console(highlight=False).print(table)


def _likely(position: TokenLogprobs) -> str:
    return "  ".join(f"{_quoted(token)} {token.logprob:.3f}" for token in position.alternatives)


def _quoted(token: TokenLogprob) -> str:
    return json.dumps(token.text, ensure_ascii=False)
