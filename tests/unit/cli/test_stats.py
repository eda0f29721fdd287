from baton_client import Delta, Finished, FinishReason, Started, Timings, Usage
from cli.stats import StreamStats

USAGE = Usage(5, 11, 3, Timings(queue=0.001, prefill=0.02, kv_transfer=0.0035, first_token=0.03, total=1.0))


class _Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_first_token_and_rate_are_measured_at_the_client() -> None:
    clock = _Clock()
    stats = StreamStats(clock)
    stats.observe(Started("r", 5, 3))
    clock.now = 50.25
    stats.observe(Delta(0, "a"))
    clock.now = 52.75
    stats.observe(Delta(0, "b"))
    clock.now = 53.0
    stats.observe(Finished(0, FinishReason.LENGTH))
    stats.observe(USAGE)
    assert stats.summary() == (
        "5 prompt tokens (3 cached), 11 generated, finished: length, "
        "first token after 250.0 ms (queue 1.0 ms, prefill 20.0 ms, kv transfer 3.5 ms), "
        "4.0 tokens/s after it, 3.00 s in all"
    )


def test_a_single_token_has_no_rate_and_a_broken_stream_no_usage() -> None:
    clock = _Clock()
    stats = StreamStats(clock)
    stats.observe(None)
    clock.now = 50.5
    stats.observe(Delta(0, "a"))
    assert stats.summary() == "first token after 500.0 ms, 0.50 s in all"
    stats.observe(USAGE)
    assert "tokens/s" not in stats.summary()


def test_several_completions_end_in_order_of_their_indices_each_once() -> None:
    stats = StreamStats(_Clock())
    ends = [(1, FinishReason.STOP), (0, FinishReason.LENGTH), (1, FinishReason.STOP)]
    for index, reason in ends:
        stats.observe(Finished(index, reason))
    stats.observe(USAGE)
    assert "11 generated in 2 completions, finished: length, stop, " in stats.summary()
