"""Streaming text: the pieces together are the decoding of all ids, and no character is cut."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.text.detokenizer import IncrementalDetokenizer
from shared.text.tokenizer import Tokenizer

TEXTS = [
    "The quick brown fox.",
    "  two leading spaces, two trailing  ",
    "Grüße aus Köln! 東京は日本の首都です。",
    "👨‍👩‍👧 👍🏽 é é",
    "a\ufffdb\ufffd",
    "\n\n\t",
    "",
]


def stream(tokenizer: Tokenizer, token_ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    """Return the piece of each id, and last what the flush gives."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
    return [*(detokenizer.push([token_id]) for token_id in token_ids), detokenizer.flush()]


def byte_run(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """Return the byte-fallback tokens of the sentencepiece vocabulary for `data`."""
    assert tokenizer.vocabulary.fallback_byte(3) == b"\x00"
    return [3 + byte for byte in data]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_decoding(any_tokenizer: Tokenizer, text: str) -> None:
    token_ids = any_tokenizer.encode(text)
    assert "".join(stream(any_tokenizer, token_ids)) == any_tokenizer.decode(token_ids)


@settings(deadline=None, max_examples=300)
@given(data=st.data(), skip_special_tokens=st.booleans())
def test_pieces_are_the_decoding_of_any_ids(
    any_tokenizer: Tokenizer, data: st.DataObject, skip_special_tokens: bool
) -> None:
    """Any ids at all: broken UTF-8, special tokens anywhere, ids beyond the vocabulary, pushes of any size."""
    ids = st.integers(0, any_tokenizer.vocab_size + 2)
    pushes = data.draw(st.lists(st.lists(ids, max_size=8), max_size=12))
    token_ids = [token_id for push in pushes for token_id in push]
    detokenizer = IncrementalDetokenizer(any_tokenizer, skip_special_tokens)
    pieces = [detokenizer.push(push) for push in pushes]
    assume(longest_byte_run(any_tokenizer, token_ids, skip_special_tokens) <= 32)
    assert "".join(pieces) + detokenizer.flush() == any_tokenizer.decode(token_ids, skip_special_tokens)


def longest_byte_run(tokenizer: Tokenizer, token_ids: list[int], skip_special_tokens: bool) -> int:
    longest = current = 0
    for token_id in token_ids:
        if not tokenizer.vocabulary.is_silent(token_id, skip_special_tokens):
            current = current + 1 if tokenizer.vocabulary.fallback_byte(token_id) else 0
            longest = max(longest, current)
    return longest


@settings(deadline=None, max_examples=300)
@given(data=st.lists(st.sampled_from([0x20, 0x41, 0x80, 0xBF, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xFF])))
def test_broken_utf8_of_single_bytes_reads_as_decoded(byte_level: Tokenizer, data: list[int]) -> None:
    by_byte = {byte_level.vocabulary.to_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    token_ids = [by_byte[bytes([byte])] for byte in data]
    text = "".join(stream(byte_level, token_ids))
    assert text == byte_level.decode(token_ids) == bytes(data).decode(errors="replace")


@settings(deadline=None)
@given(text=st.text())
def test_text_survives_byte_level_streaming(byte_level: Tokenizer, text: str) -> None:
    pieces = stream(byte_level, byte_level.encode(text))
    assert "".join(pieces) == byte_level.decode(byte_level.encode(text))
    assert pieces[-1] == ""
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


class TestByteLevel:
    def test_each_piece_comes_with_the_token_that_completes_it(self, byte_level: Tokenizer) -> None:
        by_byte = {byte_level.vocabulary.to_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
        token_ids = [by_byte[bytes([byte])] for byte in "a€b".encode()]
        assert stream(byte_level, token_ids) == ["a", "", "", "€", "b", ""]

    def test_text_before_an_unfinished_character_is_not_held(self, byte_level: Tokenizer) -> None:
        detokenizer = IncrementalDetokenizer(byte_level)
        start, *_ = (i for i in range(byte_level.vocab_size) if byte_level.vocabulary.to_bytes(i) == b"\xf0")
        assert detokenizer.push([*byte_level.encode("dog"), start]) == "dog"
        assert detokenizer.flush() == "\ufffd"

    def test_special_tokens_are_left_out_or_not(self, byte_level: Tokenizer) -> None:
        token_ids = byte_level.encode("<|im_start|>dog<|im_end|>")
        assert "".join(stream(byte_level, token_ids)) == "dog"
        assert "".join(stream(byte_level, token_ids, False)) == "<|im_start|>dog<|im_end|>"

    @pytest.mark.parametrize(
        ("token", "text"), [("<tool>", "<tool>"), ("日本語", "日本語"), ("aé語", "aé語"), ("é", "\ufffd")]
    )
    def test_added_tokens_read_as_the_library_reads_them(
        self, byte_level_with_added_tokens: Tokenizer, token: str, text: str
    ) -> None:
        tokenizer = byte_level_with_added_tokens
        (token_id,) = tokenizer.encode(token)
        assert "".join(stream(tokenizer, [token_id])) == tokenizer.decode([token_id]) == text


class TestSentencePiece:
    """Ids of the fixture: byte b is 3 + b, then "▁" 259, "▁▁" 260, "▁the" 261, "▁a" 262, "the" 263, "a" 264."""

    def test_only_the_first_space_of_the_text_is_dropped(self, sentencepiece: Tokenizer) -> None:
        assert stream(sentencepiece, [261, 262, 261]) == ["the", " a", " the", ""]

    def test_a_lone_leading_space_is_nothing(self, sentencepiece: Tokenizer) -> None:
        assert stream(sentencepiece, [259, 261]) == ["", " the", ""]
        assert stream(sentencepiece, [260, 264]) == [" ", "a", ""]

    def test_skipped_special_tokens_do_not_restart_the_text(self, sentencepiece: Tokenizer) -> None:
        assert stream(sentencepiece, [1, 261, 2, 262]) == ["", "the", "", " a", ""]

    def test_bytes_are_held_until_their_run_ends(self, sentencepiece: Tokenizer) -> None:
        token_ids = [264, *byte_run(sentencepiece, "€".encode()), 264]
        assert stream(sentencepiece, token_ids) == ["a", "", "", "", "€a", ""]

    def test_a_run_that_ends_the_text_comes_with_the_flush(self, sentencepiece: Tokenizer) -> None:
        assert stream(sentencepiece, byte_run(sentencepiece, "é".encode())) == ["", "", "é"]
        assert stream(sentencepiece, byte_run(sentencepiece, b"A\xc3")) == ["", "", "\ufffd\ufffd"]

    def test_a_long_run_is_streamed_by_whole_characters(self, sentencepiece: Tokenizer) -> None:
        text = "ភាសាខ្មែរ" * 12  # 27 bytes each, three a character
        token_ids = [*byte_run(sentencepiece, text.encode()), 262]
        pieces = stream(sentencepiece, token_ids)
        assert "".join(pieces) == sentencepiece.decode(token_ids) == text + " a"
        assert [len(piece) for piece in pieces if piece] == [11] * 9 + [11]
        assert not any("\ufffd" in piece for piece in pieces)

    def test_a_long_run_that_breaks_keeps_the_characters_given_out(self, sentencepiece: Tokenizer) -> None:
        token_ids = byte_run(sentencepiece, b"A" * 33 + b"\xff")
        assert "".join(stream(sentencepiece, token_ids)) == "A" * 33 + "\ufffd"
        assert sentencepiece.decode(token_ids) == "\ufffd" * 34

    def test_a_token_of_the_replacement_character_is_text(self, sentencepiece: Tokenizer) -> None:
        token_id = sentencepiece.encode("a\ufffda")[2]
        assert sentencepiece.decode([token_id]) == "\ufffd"
        assert stream(sentencepiece, [264, token_id, 264]) == ["a", "", "\ufffda", ""]


def test_the_cost_of_a_token_does_not_grow(sentencepiece: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids decoded for a text of n tokens are at most a constant times n, whatever the tokens are."""
    num_decoded = 0
    decode = sentencepiece.decode

    def counting_decode(token_ids: list[int], skip_special_tokens: bool = True) -> str:
        nonlocal num_decoded
        num_decoded += len(token_ids)
        return decode(token_ids, skip_special_tokens)

    monkeypatch.setattr(sentencepiece, "decode", counting_decode)
    replacement = sentencepiece.encode("a\ufffda")[2]
    words, broken, runs = [261, 262] * 1000, byte_run(sentencepiece, b"\xff" * 2000), [3 + 0x41] * 2000
    for token_ids, most in ((words, 4), (broken, 4), (runs, 4), ([replacement] * 2000, 12)):
        num_decoded = 0
        stream(sentencepiece, token_ids)
        assert 0 < num_decoded <= most * len(token_ids)
