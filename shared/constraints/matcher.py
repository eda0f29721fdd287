"""Where a completion stands in its constraint, and which tokens may come next."""

from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray


class ConstraintError(RuntimeError):
    """A completion cannot go on under its constraint; the matcher is of no more use.

    Either the constraint is too complex at this place (the library's limits), or no token leads any further, or a
    token was taken that is not allowed.
    """


@dataclass(frozen=True, slots=True)
class ConstraintVocabulary:
    """What a matcher knows of the tokens.

    Attributes:
        vocab_size: logits of the model.
        num_tokens: one more than the tokenizer's highest token id; ids from there on stand for nothing.
        eos_token_ids: the tokens that end a completion.
        never: tokens whose bytes the library takes for others than they are.
        never_first: tokens that begin with a space, where the tokenizer drops one that begins a completion.
    """

    vocab_size: int
    num_tokens: int
    eos_token_ids: tuple[int, ...]
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()


class ConstraintMatcher:
    """The state of one completion. One thread at a time; copies are independent of each other.

    Args:
        matcher: The library's, which belongs to this one from now on.
        vocabulary: The tokens.
        is_beginning: Whether no token has been taken.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: ConstraintVocabulary, is_beginning: bool = True) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._is_beginning = is_beginning
        self._has_ended = False

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next; EOS tokens exactly where the text so far is whole, and alone after the end.

        Where the constraint leaves one way to go on, only the tokenizer's own spelling of it is allowed.

        Returns:
            bool [vocab_size], a new array; at least one is True.

        Raises:
            ConstraintError: The constraint is too complex here, or nothing may come next.
        """
        vocabulary = self._vocabulary
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._raise_on_error()  # in its error state the library allows EOS
        mask = np.unpackbits(bits, count=vocabulary.vocab_size, bitorder="little").view(np.bool_)
        mask[vocabulary.num_tokens :] = False
        mask[list(vocabulary.never)] = False
        self._hold_off_early_end(mask)
        if self._is_beginning:
            mask[list(vocabulary.never_first)] = False
        if not mask.any():
            raise ConstraintError("no token can follow under this constraint")
        return mask

    def advance(self, token_id: int) -> None:
        """Take the next token. After an EOS token everything is taken, and EOS alone is allowed.

        Raises:
            ConstraintError: The token is not allowed, or the constraint is too complex here.
        """
        if self._has_ended:
            return
        self._has_ended = token_id in self._vocabulary.eos_token_ids
        self._is_beginning = False
        if not self._matcher.consume_token(token_id):
            raise ConstraintError(f"token {token_id} cannot follow: {_cause(self._matcher)}")

    def copy(self) -> "ConstraintMatcher":
        """Return one in the same state, which goes its own way from here on."""
        twin = ConstraintMatcher(self._matcher.deep_copy(), self._vocabulary, self._is_beginning)
        twin._has_ended = self._has_ended
        return twin

    def _hold_off_early_end(self, mask: NDArray[np.bool_]) -> None:
        """Grammars can name EOS tokens; they may end a completion only where the sentence ends with them."""
        if self._has_ended or self._matcher.is_accepting():
            return
        for token_id in self._vocabulary.eos_token_ids:
            if mask[token_id]:
                mask[token_id] = self._ends_with(token_id)

    def _ends_with(self, token_id: int) -> bool:
        twin = self._matcher.deep_copy()
        return twin.consume_token(token_id) and twin.is_accepting()

    def _raise_on_error(self) -> None:
        if self._matcher.is_error():
            raise ConstraintError(_cause(self._matcher))


def _cause(matcher: LLMatcher) -> str:
    """Return the library's message without its own marks; it has a name for "nothing can follow", which says little."""
    message = matcher.get_error().replace("<non-verbose/>", "").strip()
    return "no text can follow here" if message.startswith("NoExtension") else message
