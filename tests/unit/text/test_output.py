"""One completion, token by token: which text goes out, and how it ends."""

from typing import Any

import pytest

from shared.text.output import OutputDelta, OutputStream
from shared.text.stopping import Finish, FinishReason, StoppingParams
from shared.text.tokenizer import Tokenizer

EOS = 2  # <|im_end|> of the byte-level vocabulary
LENGTH = Finish(FinishReason.LENGTH)


def run(
    tokenizer: Tokenizer,
    token_ids: list[int],
    skip_special_tokens: bool = True,
    room: int | None = None,
    **stopping: Any,
) -> tuple[list[str], Finish | None]:
    """Push ids until one finishes; return the text of each and the finish."""
    params = StoppingParams(**{"max_tokens": 100, **stopping})
    output = OutputStream(tokenizer, params, skip_special_tokens, room)
    texts = []
    for count, token_id in enumerate(token_ids, start=1):
        delta = output.push(token_id)
        assert delta.token_ids == (token_id,)
        assert output.num_generated == count
        texts.append(delta.text)
        if delta.finish is not None:
            return texts, delta.finish
    return texts, None


def spell(tokenizer: Tokenizer, text: str | bytes) -> list[int]:
    """Return one byte-level token a byte."""
    data = text.encode() if isinstance(text, str) else text
    by_byte = {tokenizer.vocabulary.to_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [by_byte[bytes([byte])] for byte in data]


def matched_text(text: str) -> Finish:
    return Finish(FinishReason.STOP, matched_text=text)


def matched_token(token_id: int) -> Finish:
    return Finish(FinishReason.STOP, matched_token_id=token_id)


class TestStopTokens:
    def test_end_of_sequence_ends_it_without_its_text(self, byte_level: Tokenizer) -> None:
        ids = [*spell(byte_level, "ab"), EOS]
        assert run(byte_level, ids, skip_special_tokens=False) == (["a", "b", ""], matched_token(EOS))

    def test_first_token_may_be_the_end(self, byte_level: Tokenizer) -> None:
        assert run(byte_level, [EOS]) == ([""], matched_token(EOS))

    def test_included_unless_special_tokens_are_skipped(self, byte_level: Tokenizer) -> None:
        ids = [*spell(byte_level, "a"), EOS]
        assert run(byte_level, ids, False, include_stop=True) == (["a", "<|im_end|>"], matched_token(EOS))
        assert run(byte_level, ids, True, include_stop=True) == (["a", ""], matched_token(EOS))

    def test_stop_token_that_is_text(self, byte_level: Tokenizer) -> None:
        ids = spell(byte_level, "a.b")
        assert run(byte_level, ids, stop_token_ids=(ids[1],)) == (["a", ""], matched_token(ids[1]))
        assert run(byte_level, ids, stop_token_ids=(ids[1],), include_stop=True) == (["a", "."], matched_token(ids[1]))

    def test_ignored_end_of_sequence_is_a_token_like_others(self, byte_level: Tokenizer) -> None:
        ids = [*spell(byte_level, "a"), EOS, *spell(byte_level, "b")]
        assert run(byte_level, ids, False, ignore_eos=True) == (["a", "<|im_end|>", "b"], None)

    def test_end_gives_out_what_was_held(self, byte_level: Tokenizer) -> None:
        ids = [*spell(byte_level, b"E\xe2\x82"), EOS]
        assert run(byte_level, ids, stop=("END",)) == (["", "", "", "E\ufffd"], matched_token(EOS))


class TestStopStrings:
    def test_spans_tokens(self, byte_level: Tokenizer) -> None:
        assert run(byte_level, spell(byte_level, "aEND"), stop=("END",)) == (["a", "", "", ""], matched_text("END"))

    def test_spans_the_first_and_second_token(self, byte_level: Tokenizer) -> None:
        assert run(byte_level, spell(byte_level, "END"), stop=("EN",)) == (["", ""], matched_text("EN"))

    def test_rest_of_the_token_is_dropped(self, byte_level: Tokenizer) -> None:
        ids = byte_level.encode(" dog")
        assert len(ids) == 1
        assert run(byte_level, ids, stop=("o",)) == ([" d"], matched_text("o"))
        assert run(byte_level, ids, stop=("o",), include_stop=True) == ([" do"], matched_text("o"))

    def test_inside_a_token_that_also_begins_a_character(self, sentencepiece: Tokenizer) -> None:
        # The run of bytes "€" is given out with the token after it, so both are text of that token.
        ids = [3 + byte for byte in "€".encode()] + [264, 265]
        assert run(sentencepiece, ids, stop=("€a",)) == (["", "", "", ""], matched_text("€a"))
        assert run(sentencepiece, ids, stop=("a",)) == (["", "", "", "€"], matched_text("a"))

    def test_character_of_many_tokens(self, byte_level: Tokenizer) -> None:
        ids = spell(byte_level, "a👍b")
        assert run(byte_level, ids, stop=("👍",)) == (["a", "", "", "", ""], matched_text("👍"))

    def test_completed_by_what_the_end_gives_out(self, sentencepiece: Tokenizer) -> None:
        ids = [264, *(3 + byte for byte in "é".encode()), 2]
        assert run(sentencepiece, ids, stop=("é",)) == (["a", "", "", ""], matched_text("é"))

    def test_of_the_last_allowed_token_is_a_stop(self, byte_level: Tokenizer) -> None:
        ids = spell(byte_level, "aEND")
        assert run(byte_level, ids, stop=("END",), max_tokens=4)[1] == matched_text("END")

    def test_included_text_of_a_stop_token_is_searched_too(self, byte_level: Tokenizer) -> None:
        ids = byte_level.encode(" dog")
        assert run(byte_level, ids, stop=("o",), stop_token_ids=(ids[0],)) == ([""], matched_token(ids[0]))
        assert run(byte_level, ids, stop=("o",), stop_token_ids=(ids[0],), include_stop=True) == (
            [" do"],
            matched_text("o"),
        )


class TestLengths:
    def test_one_token(self, byte_level: Tokenizer) -> None:
        assert run(byte_level, spell(byte_level, "ab"), max_tokens=1) == (["a"], LENGTH)

    def test_held_text_is_given_out(self, byte_level: Tokenizer) -> None:
        ids = spell(byte_level, b"aEN\xe2")
        assert run(byte_level, ids, stop=("END",), max_tokens=3) == (["a", "", "EN"], LENGTH)
        assert run(byte_level, ids, stop=("END",), max_tokens=4) == (["a", "", "", "EN\ufffd"], LENGTH)

    def test_full_context(self, byte_level: Tokenizer) -> None:
        assert run(byte_level, spell(byte_level, "abc"), room=2) == (["a", "b"], LENGTH)

    def test_end_of_sequence_on_the_last_place_is_a_stop(self, byte_level: Tokenizer) -> None:
        ids = [*spell(byte_level, "a"), EOS]
        assert run(byte_level, ids, max_tokens=2) == (["a", ""], matched_token(EOS))
        assert run(byte_level, ids, room=2) == (["a", ""], matched_token(EOS))


class TestMinTokens:
    def test_stop_strings_are_text_until_then(self, byte_level: Tokenizer) -> None:
        ids = spell(byte_level, "ENDxEND")
        assert run(byte_level, ids, stop=("END",), min_tokens=3) == (
            ["", "", "END", "x", "", "", ""],
            matched_text("END"),
        )

    def test_stop_string_completed_after_it_counts(self, byte_level: Tokenizer) -> None:
        assert run(byte_level, spell(byte_level, "END"), stop=("END",), min_tokens=2) == (
            ["", "", ""],
            matched_text("END"),
        )

    def test_stop_string_across_the_hand_over_of_a_single_token(self, byte_level: Tokenizer) -> None:
        assert run(byte_level, spell(byte_level, "EN"), stop=("EN",), min_tokens=1) == (["", ""], matched_text("EN"))


def test_nothing_may_follow_the_end(byte_level: Tokenizer) -> None:
    output = OutputStream(byte_level, StoppingParams(max_tokens=1))
    assert output.push(EOS) == OutputDelta("", (EOS,), matched_token(EOS))
    with pytest.raises(AssertionError, match="has ended"):
        output.push(EOS)
