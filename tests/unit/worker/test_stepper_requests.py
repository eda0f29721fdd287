"""What a request may ask of its steps: completions, constraints, penalties, log-probabilities, what was generated."""

from math import e, log

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.constraints.matcher import ConstraintError, ConstraintMatcher
from shared.ladder import Ladder
from shared.planning import StepLimits
from shared.sampling.logprobs import TokenLogprob, TokenLogprobs
from shared.sampling.params import SamplingParams
from shared.sampling.sampler import SampleRow
from shared.text.stopping import Finish, FinishReason, StoppingParams
from shared.worker import drawing
from shared.worker.sequence import Sequence
from shared.worker.stepper import ChunkLanded, Retired, SequenceEvent, Stepper, TokenSampled
from shared.worker.walks import TokenWalk, WalkChoice
from tests.unit.worker.counting_runner import VOCAB_SIZE, CountingRunner

LIMITS = StepLimits(budget=4, threshold=0, max_partial_prefills=0, max_num_rows=4, ladder=Ladder((4,)))
WALKS = WalkChoice(TokenWalk("mixed", LIMITS), TokenWalk("mixed", LIMITS), decode="decode")
GREEDY = SamplingParams(temperature=0)

LOG_SUM = log(e + VOCAB_SIZE - 1)
"""Of a row of CountingRunner: one logit of 1, all others 0."""


class Listing(ConstraintMatcher):
    """Allows one set of tokens a position, and keeps what it was told."""

    def __init__(self, *allowed: set[int] | Exception) -> None:
        self._allowed = allowed
        self.taken: list[int] = []
        self.fails_on: int | None = None

    def allowed(self) -> npt.NDArray[np.bool_]:
        allowed = self._allowed[len(self.taken)]
        if isinstance(allowed, Exception):
            raise allowed
        mask = np.zeros(VOCAB_SIZE, np.bool_)
        mask[list(allowed)] = True
        return mask

    def advance(self, token_id: int) -> None:
        if token_id == self.fails_on:
            raise ConstraintError("too complex")
        self.taken.append(token_id)


def sequence(
    name: str = "a",
    token_ids: tuple[int, ...] = (10, 11),
    prompt_len: int | None = None,
    max_tokens: int = 3,
    sampling: SamplingParams = GREEDY,
    **more: object,
) -> Sequence:
    prompt_len = len(token_ids) if prompt_len is None else prompt_len
    return Sequence(
        request_id=name,
        token_ids=list(token_ids),
        prompt_len=prompt_len,
        num_computed_tokens=0,
        block_table=(1,),
        sampling=sampling,
        stopping=StoppingParams(max_tokens=max_tokens),
        eos_token_ids=(),
        max_total_len=prompt_len + max_tokens,
        **more,  # type: ignore[arg-type]  # fields by name
    )


def run(*sequences: Sequence, runner: CountingRunner | None = None) -> list[list[SequenceEvent]]:
    """What each step says, until all are retired."""
    stepper = Stepper(runner or CountingRunner(), WALKS)
    for added in sequences:
        stepper.add(added)
    steps = []
    while not stepper.is_idle:
        steps.append(stepper.step())
    return steps


def tokens(steps: list[list[SequenceEvent]], name: str = "a") -> list[int]:
    events = (event for step in steps for event in step)
    return [event.token_id for event in events if isinstance(event, TokenSampled) and event.request_id == name]


class TestSeveralCompletions:
    def test_each_draws_its_own_first_token_and_then_the_sequence_ends(self) -> None:
        flat = SamplingParams(temperature=100, seed=7, n=3)
        (step,) = run(sequence(sampling=flat, indices=(0, 1, 2)))
        landed, *sampled, retired = step
        assert (landed, retired) == (ChunkLanded("a", 2), Retired("a", num_computed_tokens=2))
        drawn = [event for event in sampled if isinstance(event, TokenSampled)]
        assert [event.index for event in drawn] == [0, 1, 2]
        assert len({event.token_id for event in drawn}) == 3
        for event in drawn:
            alone = run(sequence(sampling=flat, indices=(event.index,), max_tokens=1))
            assert tokens(alone) == [event.token_id]

    def test_rows_beside_them_go_on(self) -> None:
        steps = run(sequence(sampling=SamplingParams(temperature=0, n=2), indices=(0, 1)), sequence("b", (20,)))
        assert tokens(steps) == [12, 12]
        assert tokens(steps, "b") == [21, 22, 23]

    def test_their_logits_are_not_copied_for_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        places: list[int] = []

        def sample(logits: torch.Tensor, rows: list[SampleRow]) -> list[int | FloatingPointError]:
            places.append(logits.data_ptr())
            return [row.index for row in rows]

        monkeypatch.setattr(drawing, "sample", sample)
        logits = torch.zeros(2, VOCAB_SIZE)
        drawn = drawing.draw([sequence(indices=(0, 1, 2)), sequence("b")], logits)
        assert places == [row.data_ptr() for row in logits]
        assert drawn == {"a": [drawing.Draw(index) for index in range(3)], "b": [drawing.Draw(0)]}

    def test_a_constraint_masks_the_first_tokens_and_is_not_moved(self) -> None:
        matcher = Listing({50, 60})
        (step,) = run(sequence(indices=(0, 1), matcher=matcher))
        assert tokens([step]) == [50, 50], "equal logits: the lowest id"
        assert matcher.taken == []


class TestConstraints:
    def test_it_is_asked_and_told_once_a_token(self) -> None:
        matcher = Listing({50, 60}, {61, 51}, {7})
        steps = run(sequence(matcher=matcher))
        assert tokens(steps) == [50, 51, 7], "51 is what the runner wants after 50"
        assert matcher.taken == [50, 51], "the last token ends the sequence"

    @pytest.mark.parametrize("position", [0, 1])
    def test_where_nothing_may_come_that_row_fails_alone(self, position: int) -> None:
        allowed: list[set[int] | Exception] = [{50}, {51}, {52}]
        allowed[position] = ConstraintError("a dead end")
        steps = run(sequence(matcher=Listing(*allowed)), sequence("b", (20,)))
        assert tokens(steps) == [50, 51][:position]
        assert Retired("a", "a dead end", is_constraint=True) in steps[position]
        assert tokens(steps, "b") == [21, 22, 23]

    def test_one_that_cannot_follow_a_token_fails_that_row_alone(self) -> None:
        matcher = Listing({50}, {51})
        matcher.fails_on = 50
        steps = run(sequence(matcher=matcher), sequence("b", (20,)))
        assert tokens(steps) == [50]
        assert steps[0][2] == Retired("a", "too complex", is_constraint=True)
        assert tokens(steps, "b") == [21, 22, 23]


class TestPenalties:
    def test_what_was_generated_counts_from_step_to_step(self) -> None:
        back = SamplingParams(temperature=0, logit_bias=((12, 1.5),), presence_penalty=2.0)
        assert tokens(run(sequence(sampling=back))) == [12, 13, 14], "12 has 1.5 - 2 once it was generated"

    def test_the_prompt_counts_for_repetition(self) -> None:
        assert tokens(run(sequence(token_ids=(12, 11), max_tokens=1))) == [12]
        repeated = SamplingParams(temperature=0, repetition_penalty=2.0, logit_bias=((0, 0.75),))
        assert tokens(run(sequence(token_ids=(12, 11), max_tokens=1, sampling=repeated))) == [0]

    def test_places_of_vectors_are_no_tokens(self) -> None:
        vectors = np.ones((2, 4), np.float32)
        punished = SamplingParams(temperature=0, repetition_penalty=2.0, logit_bias=((0, 1.5),))
        steps = run(sequence(token_ids=(0, 0), max_tokens=1, sampling=punished, input_embeddings=vectors))
        assert tokens(steps) == [0], "the zeros that stand for vectors are not repeated"


class TestWhatWasGeneratedBefore:
    def test_it_is_computed_in_chunks_with_the_prompt_and_goes_on_from_there(self) -> None:
        runner = CountingRunner()
        steps = run(sequence(token_ids=(1, 2, 3, 4, 5, 6), prompt_len=3, max_tokens=5), runner=runner)
        assert runner.shapes == [("mixed", [(0, 4)]), ("mixed", [(4, 2)]), ("decode", [(6, 1)])]
        assert [event for step in steps[:2] for event in step] == [
            ChunkLanded("a", 4),
            ChunkLanded("a", 6),
            TokenSampled("a", 7, None),
        ]
        assert steps[2] == [
            TokenSampled("a", 8, Finish(FinishReason.LENGTH)),
            Retired("a", num_computed_tokens=7),
        ]

    def test_its_draws_are_those_of_the_undisturbed_run(self) -> None:
        flat = SamplingParams(temperature=100, seed=3, frequency_penalty=1.0)
        whole = tokens(run(sequence(sampling=flat, max_tokens=6)))
        for cut in range(1, 6):
            resumed = sequence(
                token_ids=(10, 11, *whole[:cut]), prompt_len=2, sampling=flat, max_tokens=6, indices=(0,)
            )
            assert tokens(run(resumed)) == whole[cut:]

    @pytest.mark.parametrize(
        ("num_tokens", "num_computed", "is_decoding"),
        [(3, 0, False), (3, 3, False), (4, 3, True), (5, 3, False), (5, 4, True)],
    )
    def test_only_the_newest_token_left_is_decoding(
        self, num_tokens: int, num_computed: int, is_decoding: bool
    ) -> None:
        made = sequence(token_ids=tuple(range(num_tokens)), prompt_len=3)
        made.num_computed_tokens = num_computed
        assert made.is_decoding == is_decoding
        assert made.plan_row().can_cut != is_decoding


class TestLogprobs:
    def test_of_each_drawn_token_from_the_models_own_logits(self) -> None:
        hidden = SamplingParams(temperature=0.5, logit_bias=((5, 100.0),), n=2)
        (step,) = run(sequence(sampling=hidden, indices=(0, 1), logprobs=2))
        unlikely, likely = TokenLogprob(5, -LOG_SUM, 2), TokenLogprob(12, 1 - LOG_SUM, 1)
        expected = TokenLogprobs(unlikely, (likely, TokenLogprob(0, -LOG_SUM, 2)))
        for event in step[1:3]:
            assert isinstance(event, TokenSampled)
            assert event.logprobs is not None
            assert rounded(event.logprobs) == rounded(expected)

    def test_none_unless_they_are_wanted(self) -> None:
        steps = run(sequence(), sequence("b", (20,), logprobs=0))
        events = [event for step in steps for event in step if isinstance(event, TokenSampled)]
        assert {event.logprobs is None for event in events if event.request_id == "a"} == {True}
        assert {event.logprobs is None for event in events if event.request_id == "b"} == {False}

    def test_of_the_prompt_chunk_by_chunk(self) -> None:
        prompt = (10, 11, 30, 31, 32, 50, 51)
        steps = run(sequence(token_ids=prompt, max_tokens=1, prompt_logprobs=1))
        chunks = [event for step in steps for event in step if isinstance(event, ChunkLanded)]
        assert [chunk.num_computed_tokens for chunk in chunks] == [4, 7]
        assert [len(chunk.prompt_logprobs) for chunk in chunks] == [4, 2]
        found = [scored for chunk in chunks for scored in chunk.prompt_logprobs]
        assert [scored.token.token_id for scored in found] == list(prompt[1:])
        assert [scored.token.rank for scored in found] == [1, 2, 1, 1, 2, 1]
        assert [scored.alternatives[0].token_id for scored in found] == [11, 12, 31, 32, 33, 51]

    def test_of_the_prompt_and_not_of_what_was_generated(self) -> None:
        steps = run(sequence(token_ids=(1, 2, 3, 4, 5), prompt_len=3, max_tokens=3, prompt_logprobs=0))
        found = [
            scored.token.token_id
            for step in steps
            for event in step
            if isinstance(event, ChunkLanded)
            for scored in event.prompt_logprobs
        ]
        assert found == [2, 3]

    def test_in_a_step_with_others_each_gets_its_own(self) -> None:
        steps = run(
            sequence("b", (70, 71), max_tokens=1), sequence(token_ids=(10, 30), max_tokens=1, prompt_logprobs=0)
        )
        (landed,) = [event for event in steps[0] if isinstance(event, ChunkLanded) and event.request_id == "a"]
        assert [(scored.token.token_id, scored.token.rank) for scored in landed.prompt_logprobs] == [(30, 2)]
        assert tokens(steps) == [31], "drawn before the logits are overwritten"

    def test_logits_that_are_no_numbers_fail_that_row_alone(self) -> None:
        class NanHead(CountingRunner):
            def logits_of(self, first: int, end: int) -> torch.Tensor:
                return torch.full((end - first, VOCAB_SIZE), torch.nan)

        steps = run(sequence(prompt_logprobs=0), sequence("b", (20,)), runner=NanHead())
        assert steps[0][0] == Retired("a", "the highest logit is nan")
        assert tokens(steps, "b") == [21, 22, 23]

    def test_a_head_that_fails_fails_its_step_and_no_later_one(self) -> None:
        class NoHead(CountingRunner):
            def logits_of(self, first: int, end: int) -> torch.Tensor:
                raise RuntimeError(f"no memory for {end - first}")

        stepper = Stepper(NoHead(), WALKS)
        stepper.add(sequence(prompt_logprobs=0))
        stepper.add(sequence("b", (20,)))
        assert stepper.step() == [Retired("a", "no memory for 1"), Retired("b", "no memory for 1")]
        stepper.add(sequence("c", (30,), max_tokens=1))
        assert tokens([stepper.step()], "c") == [31]
        assert stepper.is_idle


def rounded(logprobs: TokenLogprobs) -> list[tuple[int, float, int]]:
    return [(one.token_id, round(one.logprob, 5), one.rank) for one in (logprobs.token, *logprobs.alternatives)]


def test_a_plain_step_asks_for_nothing_more() -> None:
    class Bare(CountingRunner):
        def logits_of(self, first: int, end: int) -> torch.Tensor:
            raise AssertionError(f"nobody asked for log-probabilities of tokens {first} to {end}")

    assert tokens(run(sequence(), runner=Bare())) == [12, 13, 14]
