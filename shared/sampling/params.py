"""How tokens are chosen: the parameters of one request, validated."""

from dataclasses import dataclass
from itertools import pairwise
from math import inf

from shared.constraints.constraint import Constraint
from shared.errors import Reason, require

MAX_TEMPERATURE = 100.0
MAX_REPETITION_PENALTY = 100.0
MAX_PENALTY = 2.0
MAX_LOGIT_BIAS = 100.0
MAX_NUM_BIASES = 1024
MAX_SEED = 2**64 - 1
MAX_N = 1024


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options of one request. Every value outside its bounds, NaN and infinity included, is refused.

    Attributes:
        temperature: Logits are divided by it, in [0, 100]; 0 is greedy. Above 100 any distribution is as good as
            uniform, so a larger value is taken for a mistake.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens whose probability reaches this, in (0, 1].
        min_p: Drop tokens less likely than this share of the most likely one, in [0, 1].
        repetition_penalty: Logits of tokens in prompt or completion are divided by it if positive, else multiplied; in
            (0, 100], 1 is off.
        frequency_penalty: Subtracted from a token's logit for each time that it was generated; in [-2, 2].
        presence_penalty: Subtracted from the logit of each token that was generated; in [-2, 2].
        logit_bias: Token ids, ascending and each once, with what is added to their logits, in [-100, 100]; at most
            1024 of them.
        seed: In [0, 2**64). The draw at output position i depends on (seed, index, i) alone.
        n: Completions of the prompt, from 1 to 1024; a service may allow fewer.
        constraint: What a completion must be.

    Raises:
        InvalidRequestError: SAMPLING_INVALID, with `field`, `value` and `bounds` in the metadata.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    n: int = 1
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        # Comparisons with NaN are false, so it never counts as inside.
        _require(0 <= self.temperature <= MAX_TEMPERATURE, "temperature", self.temperature, "[0, 100]")
        _require(0 <= self.top_k < inf, "top_k", self.top_k, "[0, inf)")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "(0, 1]")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "[0, 1]")
        is_penalty = 0 < self.repetition_penalty <= MAX_REPETITION_PENALTY
        _require(is_penalty, "repetition_penalty", self.repetition_penalty, f"(0, {MAX_REPETITION_PENALTY:g}]")
        for name, value in (("frequency", self.frequency_penalty), ("presence", self.presence_penalty)):
            _require(-MAX_PENALTY <= value <= MAX_PENALTY, f"{name}_penalty", value, "[-2, 2]")
        _require_bias(self.logit_bias)
        _require(0 <= self.seed <= MAX_SEED, "seed", self.seed, "[0, 2**64)")
        _require(1 <= self.n <= MAX_N, "n", self.n, f"[1, {MAX_N}]")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """Whether what was generated, or the prompt, changes the logits."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


def _require_bias(logit_bias: tuple[tuple[int, float], ...]) -> None:
    num_biases = len(logit_bias)
    _require(num_biases <= MAX_NUM_BIASES, "logit_bias", num_biases, f"[0, {MAX_NUM_BIASES}] tokens")
    for token_id, bias in logit_bias:
        _require(-MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS, f"logit_bias[{token_id}]", bias, "[-100, 100]")
    token_ids = [-1, *(token_id for token_id, _ in logit_bias)]
    assert all(before < after for before, after in pairwise(token_ids)), token_ids


def _require(is_inside: bool, field: str, value: float, bounds: str) -> None:
    require(is_inside, f"sampling.{field}", value, bounds, Reason.SAMPLING_INVALID)
