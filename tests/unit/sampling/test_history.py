"""Tokens that were seen, and how often each was generated."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shared.sampling.history import TokenHistory

TOKENS = st.lists(st.integers(0, 200), max_size=300)


def counts_of(history: TokenHistory) -> dict[int, float]:
    assert len(history.token_ids) == len(history.counts)
    return dict(zip(history.token_ids.tolist(), history.counts.tolist(), strict=True))


def test_tokens_of_the_prompt_are_seen_but_not_generated() -> None:
    assert counts_of(TokenHistory([7, 3, 7])) == {3: 0, 7: 0}


def test_generated_tokens_are_counted_wherever_else_they_stand() -> None:
    history = TokenHistory([7, 3], generated=[7, 9])
    history.push(9)
    assert counts_of(history) == {3: 0, 7: 1, 9: 2}


def test_nothing_is_seen_without_a_prompt() -> None:
    history = TokenHistory([])
    assert counts_of(history) == {}
    history.push(0)
    assert counts_of(history) == {0: 1}


@given(prompt=TOKENS, generated=TOKENS, pushed=TOKENS)
def test_pushed_tokens_count_as_those_given_at_first(
    prompt: list[int], generated: list[int], pushed: list[int]
) -> None:
    history = TokenHistory(prompt, generated)
    for token_id in pushed:
        history.push(token_id)
    expected = Counter([*generated, *pushed])
    assert counts_of(history) == {token_id: expected[token_id] for token_id in {*prompt, *generated, *pushed}}
    assert len(history.token_ids) == len(set(history.token_ids.tolist()))
