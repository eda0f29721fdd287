"""What each token id stands for, as the streaming of text needs to know it."""

import re

import tokenizers
from tokenizers import decoders

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Vocabulary:
    """The tokens of a tokenizer.

    Args:
        backend: The tokenizer.

    Attributes:
        size: One more than the highest token id.
        is_byte_level: Whether every token stands for bytes, and the text is what all bytes together decode to.
        longest_token_len: Characters of the token that is spelled longest; no token stands for more characters of text.
        anchor_id: A token that stands for the letter "a" anywhere in a text, if there is one.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        added = backend.get_added_tokens_decoder().values()
        decoder = backend.decoder
        self._id_to_token = backend.id_to_token
        self._special_tokens = frozenset(token.content for token in added if token.special)
        self._has_byte_fallback = decoder is not None and decoder.decode(["<0x41>"]) == "A"
        id_of_token = backend.get_vocab(with_added_tokens=True)
        self.size = 1 + max(id_of_token.values(), default=-1)
        self.longest_token_len = max(map(len, id_of_token), default=0)
        self.is_byte_level = isinstance(decoder, decoders.ByteLevel)
        self.anchor_id = backend.token_to_id("a")

    def is_silent(self, token_id: int, skip_special_tokens: bool) -> bool:
        """Whether the token takes no part in the text: it stands for nothing, or is special and to be skipped."""
        token = self._id_to_token(token_id)
        return token is None or (skip_special_tokens and token in self._special_tokens)

    def fallback_byte(self, token_id: int) -> bytes:
        """Return the byte of a byte-fallback token such as `<0xE2>`, and b"" for any other token."""
        match = _BYTE_TOKEN.fullmatch(self._id_to_token(token_id) or "") if self._has_byte_fallback else None
        return bytes.fromhex(match[1]) if match else b""

    def to_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token of a byte-level tokenizer stands for.

        A token is spelled in the printable alphabet of bytes that GPT-2 introduced (`bytes_to_unicode` in its
        `encoder.py`). An added token with any character outside it stands for its own UTF-8.
        """
        token = self._id_to_token(token_id) or ""
        try:
            return bytes(_BYTES[character] for character in token)
        except KeyError:
            return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character: printable ones stand for themselves, those from 256 on for the others."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_alphabet()
