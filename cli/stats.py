"""Usage and timings of one stream, as its client sees them."""

import time
from collections.abc import Callable

from baton_client import Delta, Event, Finished, Usage


class StreamStats:
    """Watches the events of a stream; made when the call is.

    Time to first token and tokens a second are measured here, at the client; the stages come from the server.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.has_begun = False
        """Whether any event has arrived."""
        self._clock = clock
        self._began = clock()
        self._first: float | None = None
        self._last = self._began
        self._usage: Usage | None = None
        self._finish_reasons: dict[int, str] = {}

    def observe(self, event: Event | None) -> None:
        """Takes note of an event that has just arrived."""
        self.has_begun = True
        if isinstance(event, Delta):
            self._last = self._clock()
            self._first = self._last if self._first is None else self._first
        elif isinstance(event, Finished):
            self._finish_reasons[event.index] = event.finish_reason
        elif isinstance(event, Usage):
            self._usage = event

    def summary(self) -> str:
        """One line; for a stream that did not end, what is known of it."""
        parts = []
        if self._usage is not None:
            usage = self._usage
            parts.append(f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached)")
            parts.append(f"{usage.completion_tokens} generated{self._completions()}")
        if self._finish_reasons:
            parts.append(f"finished: {', '.join(reason for _, reason in sorted(self._finish_reasons.items()))}")
        if self._first is not None:
            parts.append(f"first token after {_milliseconds(self._first - self._began)}{self._stages()}")
        parts += self._rate()
        parts.append(f"{self._clock() - self._began:.2f} s in all")
        return ", ".join(parts)

    def _completions(self) -> str:
        return f" in {len(self._finish_reasons)} completions" if len(self._finish_reasons) > 1 else ""

    def _stages(self) -> str:
        if self._usage is None:
            return ""
        timings = self._usage.timings
        stages = {"queue": timings.queue, "prefill": timings.prefill, "kv transfer": timings.kv_transfer}
        return f" ({', '.join(f'{name} {_milliseconds(seconds)}' for name, seconds in stages.items())})"

    def _rate(self) -> list[str]:
        if self._usage is None or self._first is None or self._last == self._first:
            return []
        return [f"{(self._usage.completion_tokens - 1) / (self._last - self._first):.1f} tokens/s after it"]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
