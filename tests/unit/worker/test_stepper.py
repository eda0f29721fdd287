"""Which walk a step is, and what becomes of the final logits."""

import torch

from shared.ladder import Ladder
from shared.planning import StepLimits
from shared.sampling.params import SamplingParams
from shared.text.stopping import StoppingParams
from shared.worker.sequence import Sequence
from shared.worker.stepper import Stepper
from shared.worker.walks import TokenWalk, WalkChoice
from tests.unit.worker.counting_runner import CountingRunner

LIMITS = StepLimits(budget=4, threshold=0, max_partial_prefills=0, max_num_rows=4, ladder=Ladder((4,)))
PREFILL, MIXED = TokenWalk("prefill_text", LIMITS), TokenWalk("mixed", LIMITS)


def sequence(request_id: str, prompt: list[int], max_tokens: int) -> Sequence:
    return Sequence(
        request_id=request_id,
        token_ids=list(prompt),
        prompt_len=len(prompt),
        num_computed_tokens=0,
        block_table=(1,),
        sampling=SamplingParams(temperature=0),
        stopping=StoppingParams(max_tokens=max_tokens),
        eos_token_ids=(),
        max_total_len=len(prompt) + max_tokens,
    )


def run_all(stepper: Stepper) -> None:
    while not stepper.is_idle:
        stepper.step()


def test_prompts_alone_have_a_walk_of_their_own() -> None:
    runner = CountingRunner()
    stepper = Stepper(runner, WalkChoice(PREFILL, MIXED, decode="decode"))
    stepper.add(sequence("a", [1, 2], max_tokens=3))
    stepper.step()
    stepper.add(sequence("b", [10, 11, 12, 13, 14], max_tokens=1))
    run_all(stepper)
    assert runner.shapes == [
        ("prefill_text", [(0, 2)]),
        ("mixed", [(2, 1), (0, 3)]),
        ("mixed", [(3, 1), (3, 2)]),
    ]


def test_without_a_mixed_walk_decode_rows_wait_for_prompts() -> None:
    runner = CountingRunner()
    stepper = Stepper(runner, WalkChoice(PREFILL, decode="decode"))
    stepper.add(sequence("a", [1, 2], max_tokens=3))
    stepper.step()
    stepper.add(sequence("b", [10, 11, 12, 13, 14], max_tokens=2))
    run_all(stepper)
    assert runner.shapes == [
        ("prefill_text", [(0, 2)]),
        ("prefill_text", [(0, 4)]),
        ("prefill_text", [(4, 1)]),
        ("decode", [(2, 1), (5, 1)]),
        ("decode", [(3, 1)]),
    ]


def test_logits_are_shown_for_each_token_that_is_sampled_and_for_no_middle_chunk() -> None:
    seen: list[tuple[str, int, int]] = []

    def on_logits(shown: Sequence, logits: torch.Tensor) -> None:
        seen.append((shown.request_id, shown.num_generated, int(logits.argmax())))

    stepper = Stepper(CountingRunner(), WalkChoice(PREFILL, decode="decode"), on_logits)
    stepper.add(sequence("a", [10, 11, 12, 13, 14], max_tokens=2))
    run_all(stepper)
    assert seen == [("a", 0, 15), ("a", 1, 16)]
