"""What `benchmarks.services` has measured, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from statistics import fmean

from benchmarks.bounds import Ceilings, ModelFacts
from benchmarks.samples import Percentiles


@dataclass(frozen=True)
class Cores:
    """CPU seconds a second of wall time.

    Attributes:
        compute: the threads of the decode service that compute.
        front: its other threads: gRPC, event loop, detokenizing.
        prefill: all threads of the prefill service, or 0 where there is none.
        client: this process.
        others: processes that have nothing to do with this, and the machine's host: they disturb what is measured.
    """

    compute: float
    front: float
    prefill: float
    client: float
    others: float

    @classmethod
    def mean(cls, rounds: Sequence["Cores"]) -> "Cores":
        """Of several rounds."""
        return cls(*(fmean(values) for values in zip(*map(astuple, rounds), strict=True)))


@dataclass(frozen=True)
class Decoding:
    """So many streams at a time, and decode steps of the bare engine with as many rows of their mean context.

    Attributes:
        gap_ms: between neighbouring tokens of a stream.
        spread_ms: for each step, its last token's arrival minus its first one's.
        num_irregular_steps: steps whose tokens mixed with a neighbour's.
    """

    num_streams: int
    context: int
    tokens_a_second: float
    engine_tokens_a_second: float
    ratio: float
    gap_ms: Percentiles
    gap_p99_to_median: float
    spread_ms: Percentiles
    num_irregular_steps: int
    cores: Cores


@dataclass(frozen=True)
class FirstToken:
    """One request at a time on idle services, with a prompt of which nothing is cached.

    Attributes:
        ttft_ms: from the call to the first token.
        engine_ms: what the bare engine takes for the prompt.
        ratio: of the medians.
        hand_over_ms: from the first token to the second, less the median step.
        copy_ms: of copying the last chunk's KV from memory to memory.
        bound_ms: 1.5 × copy_ms + 2.
    """

    prompt_len: int
    ttft_ms: Percentiles
    engine_ms: float
    ratio: float
    step_ms: float
    hand_over_ms: Percentiles
    last_chunk_len: int
    copy_ms: float
    bound_ms: float


@dataclass(frozen=True)
class Interference:
    """Eight streams decode while prompts of 2,000 tokens come back to back.

    Attributes:
        gap_ms: between neighbouring tokens of a stream.
        ttft_ms: of the prompts.
        tokens_a_second: decoded and prefilled together.
    """

    gap_ms: Percentiles
    ttft_ms: Percentiles
    decode_tokens_a_second: float
    prefill_tokens_a_second: float
    tokens_a_second: float
    num_prompts: int
    seconds: float
    cores: Cores


@dataclass
class OneProcess:
    """One process of two threads that does everything."""

    decoding: dict[int, Decoding] = field(default_factory=dict)
    first_token: dict[int, FirstToken] = field(default_factory=dict)


@dataclass
class Results:
    """What was measured; sections that were not asked for are empty.

    Attributes:
        decoding: by number of streams.
        first_token: by length of the prompt.
        engine: tokens a second of one thread, "decode 8x128" and "prefill 1x2048", where interference was measured.
        interference: of the split services, "split", and of one process by its step budget.
        default_budget: the budget of one process as it is configured.
        settings: `BATON_…` variables that were set.
    """

    model: ModelFacts
    ceilings: Ceilings
    default_budget: int
    settings: Mapping[str, str] = field(default_factory=dict)
    ceilings_after: Ceilings | None = None
    decoding: dict[int, Decoding] = field(default_factory=dict)
    first_token: dict[int, FirstToken] = field(default_factory=dict)
    engine: dict[str, float] = field(default_factory=dict)
    interference: dict[str, Interference] = field(default_factory=dict)
    one_process: OneProcess = field(default_factory=OneProcess)
