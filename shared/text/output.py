"""One completion as it is generated: token ids in, text and the finish out."""

from dataclasses import dataclass

from shared.text.detokenizer import IncrementalDetokenizer
from shared.text.stopping import Finish, FinishReason, StopMatcher, StoppingParams, token_finish
from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one token adds to a completion.

    Attributes:
        text: Text that is certain now; it lags behind the tokens while it may be part of a character or of a stop.
        token_ids: The tokens consumed, a stop token included.
        finish: The end, if this was the last token.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: Finish | None


class OutputStream:
    """Detokenizes a completion and ends it by the request's stopping rules.

    Stop strings are found in the text as it is given out, so one that begins before `min_tokens` and is completed after
    it counts. A stop string that a token completes goes before that token's being the last allowed one. The text of a
    stop token is left out unless `include_stop`, and then obeys `skip_special_tokens` like any other.

    Args:
        tokenizer: The model's tokenizer.
        params: The request's stopping options.
        skip_special_tokens: Whether special tokens are left out of the text.
        room: Tokens that the context holds beside the prompt; None if `max_tokens` is known to fit.
    """

    def __init__(
        self, tokenizer: Tokenizer, params: StoppingParams, skip_special_tokens: bool = True, room: int | None = None
    ) -> None:
        self._eos_token_ids = tokenizer.eos_token_ids
        self._params = params
        self._room = params.max_tokens if room is None else room
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
        self._matcher = StopMatcher(params.stop, params.include_stop)
        self._is_finished = False
        self.num_generated = 0

    def push(self, token_id: int) -> OutputDelta:
        """Take the next token; nothing may be pushed after the one that finished the completion."""
        assert not self._is_finished, "the completion has ended"
        self.num_generated += 1
        room = self._room - self.num_generated
        finish = token_finish(self._params, self._eos_token_ids, token_id, self.num_generated, room)
        text, matched = self._matcher.push(
            self._read(token_id, finish), can_match=self.num_generated > self._params.min_tokens
        )
        if matched is not None:
            finish = Finish(FinishReason.STOP, matched_text=matched)
        elif finish is not None:
            text += self._matcher.flush()
        self._is_finished = finish is not None
        return OutputDelta(text, (token_id,), finish)

    def _read(self, token_id: int, finish: Finish | None) -> str:
        """Return the text that the token completes, and with the last token all that is still held back."""
        is_stop_token = finish is not None and finish.reason is FinishReason.STOP
        text = "" if is_stop_token and not self._params.include_stop else self._detokenizer.push([token_id])
        return text if finish is None else text + self._detokenizer.flush()
