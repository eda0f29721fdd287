"""What goes wrong with a benchmark, and how its command ends then."""


class BenchmarkError(Exception):
    """The measurement cannot go on, or would not mean what it says."""
