"""Text from token ids that arrive one by one."""

import codecs
from collections.abc import Sequence

from shared.text.tokenizer import Tokenizer
from shared.text.vocabulary import Vocabulary

_REPLACEMENT = "\ufffd"
_MAX_CHARACTER_LEN = 4  # bytes, and so tokens
_MAX_BYTE_RUN_LEN = 32


class IncrementalDetokenizer:
    """Turns a stream of token ids into a stream of text, holding back what may still be part of a character.

    The pieces together are `tokenizer.decode` of all the ids. The one exception is a run of more than 32 byte tokens of
    a SentencePiece vocabulary (`<0xE2>`): the characters that it completes are given out, although `decode` replaces
    all of them if the run then goes on to break UTF-8. Otherwise nothing could be streamed in scripts that such a
    vocabulary spells in bytes.

    Args:
        tokenizer: The model's tokenizer.
        skip_special_tokens: Whether special tokens are left out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._vocabulary = tokenizer.vocabulary
        self._skip_special_tokens = skip_special_tokens
        self._stream: _ByteStream | _TextWindow = (
            _ByteStream(tokenizer.vocabulary) if tokenizer.vocabulary.is_byte_level else _TextWindow(tokenizer)
        )

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids and return the text that they complete."""
        return "".join(
            self._stream.push(token_id)
            for token_id in token_ids
            if not self._vocabulary.is_silent(token_id, self._skip_special_tokens)
        )

    def flush(self) -> str:
        """Return what is held back, when no more ids will come; an unfinished character becomes U+FFFD."""
        return self._stream.flush()


class _ByteStream:
    """Byte-level vocabularies: UTF-8 decoded as it comes, at the cost of the bytes themselves."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._vocabulary.to_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _TextWindow:
    """All others: the text of a few tokens, decoded behind the few before them.

    The technique is that of text-generation-inference (`Model.decode_token`) and vLLM (`detokenize_incrementally`):
    what a token reads as depends on whether it begins the text (a leading space is dropped) and on the rest of its
    character, so new tokens are decoded together with the ones before, and the text of those is cut off. Each token is
    decoded a bounded number of times.

    Byte tokens need more care than there: the decoder replaces a whole run of them if any part of it is no UTF-8, so a
    run is held until it ends.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = tokenizer.vocabulary
        self._context: list[int] = []  # given out already; ends at no run of bytes that could go on
        self._held: list[int] = []
        self._byte_run = b""  # what the last of the held tokens spell

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        if byte := self._vocabulary.fallback_byte(token_id):
            self._byte_run += byte
            return self._give_out_long_run() if len(self._byte_run) > _MAX_BYTE_RUN_LEN else ""
        self._byte_run = b""
        text = self._held_text()
        may_be_unfinished = not text or (text.endswith(_REPLACEMENT) and len(self._held) < _MAX_CHARACTER_LEN)
        return "" if may_be_unfinished else self._give_out(text, self._held)

    def flush(self) -> str:
        return self._give_out(self._held_text(), self._held)

    def _give_out_long_run(self) -> str:
        """Give out a run of bytes that has not ended, if it ends with a whole character; what follows is a new run."""
        anchor_id = self._vocabulary.anchor_id
        if anchor_id is None or not _is_utf8(self._byte_run):
            return ""
        self._byte_run = b""
        return self._give_out(self._held_text(), [anchor_id])

    def _give_out(self, text: str, context: list[int]) -> str:
        self._context, self._held = context, []
        return text

    def _held_text(self) -> str:
        return self._decode(self._context + self._held)[len(self._decode(self._context)) :]

    def _decode(self, token_ids: list[int]) -> str:
        # Special tokens that are to be skipped never come here.
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
