"""Stop strings in text that arrives in pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.text.stopping import StopMatcher


def run(stops: list[str], pieces: list[str], include_stop: bool = False) -> tuple[list[str], str | None]:
    """Return what each piece passes on, what a flush gives if nothing matched, and the match."""
    matcher = StopMatcher(stops, include_stop)
    passed = []
    for piece in pieces:
        text, matched = matcher.push(piece)
        passed.append(text)
        if matched is not None:
            return passed, matched
    return [*passed, matcher.flush()], None


@pytest.mark.parametrize(
    ("stops", "pieces", "passed", "matched"),
    [
        ([], ["a", "b"], ["a", "b", ""], None),
        (["END"], ["a", "E", "N", "D"], ["a", "", "", ""], "END"),
        (["END"], ["a EN", "ough"], ["a ", "ENough", ""], None),
        (["END"], ["a EN"], ["a ", "EN"], None),
        (["END"], ["xENDy"], ["x"], "END"),
        (["END"], ["EEN", "D"], ["E", ""], "END"),
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""], "\n\n"),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", ""], "aab"),
        (["abab", "x"], ["ab", "ax"], ["", "aba"], "x"),
        (["."], ["One. Two."], ["One"], "."),
        (["日本"], ["東日", "本"], ["東", ""], "日本"),
        (["END"], ["", ""], ["", "", ""], None),
    ],
)
def test_text_is_held_only_while_it_may_begin_a_stop(
    stops: list[str], pieces: list[str], passed: list[str], matched: str | None
) -> None:
    assert run(stops, pieces) == (passed, matched)


@pytest.mark.parametrize(
    ("stops", "piece", "passed", "matched"),
    [
        (["b", "ab"], "xab", "x", "ab"),
        (["bc", "abcd"], "xabcd", "x", "abcd"),
        (["ab", "abc"], "xabc", "x", "ab"),
        (["abc", "ab"], "xabc", "x", "abc"),
        (["d", "a"], "abcd", "", "a"),
    ],
)
def test_of_several_in_a_piece_the_earliest_wins_then_the_one_listed_first(
    stops: list[str], piece: str, passed: str, matched: str
) -> None:
    assert run(stops, [piece]) == ([passed], matched)


def test_the_one_that_is_completed_first_ends_the_text() -> None:
    assert run(["abcd", "bc"], ["ab", "c", "d"]) == (["", "a"], "bc")


def test_the_stop_can_stay_but_nothing_after_it() -> None:
    assert run(["END"], ["a E", "NDx"], include_stop=True) == (["a ", "END"], "END")


class TestMatchingHeldOff:
    def test_a_stop_is_plain_text(self) -> None:
        matcher = StopMatcher(["END"], include_stop=False)
        assert matcher.push("xEND", can_match=False) == ("xEND", None)
        assert matcher.push("yEND") == ("y", "END")

    def test_a_stop_that_begins_before_and_ends_after_matches(self) -> None:
        matcher = StopMatcher(["END"], include_stop=False)
        assert matcher.push("xEN", can_match=False) == ("x", None)
        assert matcher.push("D") == ("", "END")

    def test_the_end_of_a_stop_may_begin_another(self) -> None:
        matcher = StopMatcher(["aa"], include_stop=False)
        assert matcher.push("aa", can_match=False) == ("a", None)
        assert matcher.push("a") == ("", "aa")


def search(stops: list[str], pieces: list[str]) -> tuple[int, str] | None:
    """Return start and stop by searching the whole text so far after each piece."""
    for count in range(1, len(pieces) + 1):
        text = "".join(pieces[:count])
        found = [(text.find(stop), order) for order, stop in enumerate(stops) if stop in text]
        if found:
            start, order = min(found)
            return start, stops[order]
    return None


SHORT = st.text("ab", min_size=1, max_size=5)


@settings(deadline=None, max_examples=500)
@given(stops=st.lists(SHORT, max_size=4), pieces=st.lists(st.text("ab", max_size=6)), include_stop=st.booleans())
def test_equals_a_search_of_the_whole_text(stops: list[str], pieces: list[str], include_stop: bool) -> None:
    passed, matched = run(stops, pieces, include_stop)
    found = search(stops, pieces)
    if found is None:
        assert matched is None
        assert "".join(passed) == "".join(pieces)
    else:
        start, stop = found
        assert matched == stop
        assert "".join(passed) == "".join(pieces)[: start + len(stop) * include_stop]


@settings(deadline=None)
@given(stops=st.lists(SHORT, min_size=1, max_size=4), pieces=st.lists(st.text("abc", max_size=6)))
def test_what_is_held_is_the_longest_possible_beginning(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops, include_stop=False)
    text = passed = ""
    for piece in pieces:
        text += piece
        emitted, matched = matcher.push(piece)
        if matched is not None:
            return
        passed += emitted
        beginnings = [stop[:n] for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])]
        assert len(text) - len(passed) == max(map(len, beginnings))
