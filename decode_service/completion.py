"""One completion of a request as it grows, whoever computes its tokens."""

from dataclasses import dataclass

from decode_service.request import Delta, GenerationRequest
from shared.constraints.constraint import constraint_refusal
from shared.constraints.matcher import ConstraintError
from shared.errors import InvalidRequestError, Reason
from shared.sampling.logprobs import TokenLogprobs
from shared.text.output import OutputStream
from shared.text.stopping import Finish
from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token that was drawn for completion `index`."""

    token_id: int
    index: int = 0
    logprobs: TokenLogprobs | None = None


class Completion:
    """Text, tokens and end of one completion.

    Attributes:
        index: which of the request's completions this is.
        num_generated: its tokens so far.
        finish: how it ended, if it has.
        matcher: which tokens the constraint allows next. It is the step loop's to advance while the completion is
            computed there; `follow` advances it over tokens that were drawn elsewhere.
    """

    def __init__(self, request: GenerationRequest, index: int, tokenizer: Tokenizer) -> None:
        room = request.max_total_len - request.prompt_len
        self.index = index
        self.finish: Finish | None = None
        self.matcher = request.matcher.copy() if request.matcher is not None else None
        self._output = OutputStream(tokenizer, request.stopping, request.skip_special_tokens, room)

    @property
    def num_generated(self) -> int:
        """Its tokens so far."""
        return self._output.num_generated

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> Delta:
        """Takes the next token; nothing may be pushed after the one that ends the completion."""
        delta = self._output.push(token_id)
        self.finish = delta.finish
        return Delta(delta.text, delta.token_ids, self.index, () if logprobs is None else (logprobs,))

    def follow(self, token_id: int) -> None:
        """Advances the constraint over a token that was drawn elsewhere.

        Raises:
            ConstraintError: the constraint does not allow it.
        """
        if self.matcher is not None:
            self.matcher.advance(token_id)


def begin_completions(request: GenerationRequest, tokenizer: Tokenizer) -> list[Completion]:
    """The completions of a request by index, each after what was generated of it before.

    Takes long where much was generated, or there are constraints.

    Raises:
        InvalidRequestError: RESUME_INVALID: what is said to be generated could not have been.
    """
    completions = [Completion(request, index, tokenizer) for index in range(request.num_completions)]
    for index, token_ids in request.resumed.items():
        _replay(completions[index], token_ids)
    return completions


def _replay(completion: Completion, token_ids: tuple[int, ...]) -> None:
    for position, token_id in enumerate(token_ids):
        if completion.finish is not None:
            raise _impossible(completion, position, "comes after the completion's end")
        try:
            completion.follow(token_id)
        except ConstraintError as error:
            raise _impossible(completion, position, "is not what the constraint allows") from error
        completion.push(token_id)


def constraint_failed(request: GenerationRequest, detail: str) -> InvalidRequestError:
    """What a request gets whose constraint can go on no further; it could not at another replica either."""
    assert request.sampling.constraint is not None
    return constraint_refusal(request.sampling.constraint, "cannot go on", detail)


def _impossible(completion: Completion, position: int, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"resume: token {position} of completion {completion.index} {why}; this request has not generated it",
        Reason.RESUME_INVALID,
        {"field": "resume", "index": completion.index, "position": position},
    )
