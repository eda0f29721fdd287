"""Finds stop strings in text that arrives in pieces."""

from collections.abc import Sequence


class StopMatcher:
    """Passes text on, holding back only what may be the beginning of a stop string.

    The stop that is first completed ends the text. When one piece completes several, the one that begins earliest in
    the text wins, and among those that begin together the one listed first.

    Args:
        stops: Non-empty strings.
        include_stop: Whether the matched string is passed on too.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool) -> None:
        self._progress = [_Progress(stop) for stop in stops]
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str, can_match: bool = True) -> tuple[str, str | None]:
        """Take the next piece of text.

        Args:
            text: The piece; may be empty.
            can_match: Whether a stop may be completed in this piece. One that is completed otherwise is plain text,
                though its end may still be the beginning of another.

        Returns:
            The text that can be passed on, and the stop string that ended it, if any. After a match nothing more may be
            pushed: what follows the stop is dropped.
        """
        held, self._held = self._held + text, ""
        matches = [
            (len(held) - len(text) + end - len(progress.stop), order, progress.stop)
            for order, progress in enumerate(self._progress)
            if (end := progress.advance(text, can_match)) is not None
        ]
        if matches:
            start, _, stop = min(matches)
            return held[: start + len(stop) * self._include_stop], stop
        num_held = max((progress.num_matched for progress in self._progress), default=0)
        split = len(held) - num_held
        self._held = held[split:]
        return held[:split], None

    def flush(self) -> str:
        """Return what is held back, when no more text will come."""
        held, self._held = self._held, ""
        return held


class _Progress:
    """How much of one stop the end of the text so far matches (Knuth, Morris, Pratt: constant time a character)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._shorter = _borders(stop)

    def advance(self, text: str, can_match: bool) -> int | None:
        """Read `text`; return where in it the stop ends if it is completed and may match, else None."""
        for end, character in enumerate(text, start=1):
            self.num_matched = self._extend(self.num_matched, character)
            if self.num_matched == len(self.stop):
                self.num_matched = self._shorter[-1]
                if can_match:
                    return end
        return None

    def _extend(self, num_matched: int, character: str) -> int:
        while num_matched and self.stop[num_matched] != character:
            num_matched = self._shorter[num_matched - 1]
        return num_matched + (self.stop[num_matched] == character)


def _borders(stop: str) -> list[int]:
    """Return, for each prefix of `stop`, the length of the longest shorter prefix that it ends with."""
    borders = [0]
    for character in stop[1:]:
        length = borders[-1]
        while length and stop[length] != character:
            length = borders[length - 1]
        borders.append(length + (stop[length] == character))
    return borders
