"""The tokens that the penalties look back at."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_FIRST_CAPACITY = 64


class TokenHistory:
    """Which tokens stand in the prompt and the completion, and how often each was generated.

    It is kept from step to step: a generated token costs a look-up, whatever the length of the text. A prompt of
    vectors has no token ids, so that only what is generated counts.

    Args:
        prompt_token_ids: Token ids of the prompt; may be empty.
        generated: Token ids that were generated already, in any order.
    """

    def __init__(self, prompt_token_ids: Sequence[int], generated: Sequence[int] = ()) -> None:
        seen = np.unique(np.asarray(prompt_token_ids, dtype=np.int64))
        self._place_of = {token_id: place for place, token_id in enumerate(seen.tolist())}
        self._token_ids = seen
        self._counts = np.zeros(len(seen), dtype=np.float32)  # integers are exact in float32 up to 2**24
        for token_id in generated:
            self.push(token_id)

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """Each token of the prompt and the completion once: int64 [num_unique]. A view, valid until the next push."""
        return self._token_ids[: len(self._place_of)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """How often each of `token_ids` was generated: float32 [num_unique]. A view, valid until the next push."""
        return self._counts[: len(self._place_of)]

    def push(self, token_id: int) -> None:
        """Count a token that was generated."""
        place = self._place_of.get(token_id)
        if place is None:
            place = self._add(token_id)
        self._counts[place] += 1

    def _add(self, token_id: int) -> int:
        place = len(self._place_of)
        if place == len(self._token_ids):
            self._grow()
        self._place_of[token_id] = place
        self._token_ids[place] = token_id
        return place

    def _grow(self) -> None:
        num_more = max(_FIRST_CAPACITY, len(self._token_ids))
        self._token_ids = np.concatenate([self._token_ids, np.zeros(num_more, dtype=np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(num_more, dtype=np.float32)])
