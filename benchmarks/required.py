"""What the engine has to reach with SmolLM2-135M-Instruct in bfloat16, as shares of what a machine can do at most.

Tokens a second say nothing about another machine. So each required figure is divided by the bound that it has at the
ceilings of the machine that it was set for; a figure measured elsewhere has to come as near to its own bound.
"""

from collections.abc import Mapping

from benchmarks.bounds import Ceilings, ModelFacts, step_least

DECODE = {"1x128": (1, 128), "8x128": (8, 128), "32x128": (32, 128), "8x1024": (8, 1024)}
PREFILL = {"1x512": (1, 512), "1x2048": (1, 2048), "8x256": (8, 256)}
CASES = {"decode": DECODE, "prefill": PREFILL}
"""Rows, and tokens that each has or is a prompt of."""

READ_SHARE, MULTIPLY_SHARE = 0.75, 0.75
"""Of 1x128, of reading weights; of 1x512, of multiplying, attention not counted."""

MODEL = ModelFacts(
    kernels="",
    weights="bfloat16",
    dtype="bfloat16",
    weight_bytes=268_959_744,
    layer_weights=106_168_320,
    head_weights=28_311_552,
    kv_bytes_a_token=23_040.0,
    attention_flops_a_pair=69_120,
    max_model_len=8192,
    vocab_size=49_152,
)
_TOKENS_A_SECOND: Mapping[int, Mapping[str, float]] = {
    1: {"1x128": 120, "8x128": 680, "32x128": 1000, "8x1024": 370, "1x512": 1600, "1x2048": 1250, "8x256": 1700},
    2: {"1x128": 140, "8x128": 900, "32x128": 1700, "8x1024": 500, "1x512": 3200, "1x2048": 2500, "8x256": 3300},
}
_CEILINGS = {
    # What 1x128 and 1x512 imply by the shares above: these ceilings were not measured.
    1: Ceilings(read_gb_s=43, gemm_gflop_s=453),
    2: Ceilings(read_gb_s=67, gemm_gflop_s=890),
}


def rows_of(walk: str, name: str) -> list[tuple[int, int]]:
    """The rows of a case, as `step_least` takes them."""
    num_rows, length = CASES[walk][name]
    return [(length, 1) if walk == "decode" else (0, length)] * num_rows


def required_share(model: ModelFacts, num_threads: int, walk: str, name: str) -> float | None:
    """The share of its bound that a case has to reach; None where nothing is required."""
    of_model = (model.layer_weights, model.head_weights, model.weights)
    if num_threads not in _CEILINGS or of_model != (MODEL.layer_weights, MODEL.head_weights, MODEL.weights):
        return None
    rows = rows_of(walk, name)
    num_tokens = sum(length for _, length in rows)
    required_seconds = num_tokens / _TOKENS_A_SECOND[num_threads][name]
    return step_least(MODEL, _CEILINGS[num_threads], rows).bound_seconds / required_seconds
