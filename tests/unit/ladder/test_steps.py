from shared.ladder.steps import StepCounts


def test_prompts_are_cut_at_the_budget() -> None:
    steps = StepCounts.of_prompts({5000: 1, 2048: 2, 904: 3, 1: 1}, budget=2048)
    assert steps.counts == {1: 1, 904: 4, 2048: 4}
    assert list(steps.counts) == [1, 904, 2048]
    assert steps.num_steps == 9
    assert steps.num_tokens == 5000 + 2 * 2048 + 3 * 904 + 1


def test_a_budget_below_every_prompt_makes_full_steps_and_rests() -> None:
    steps = StepCounts.of_prompts({10: 2, 7: 1}, budget=3)
    assert steps.counts == {1: 3, 3: 8}
    assert (steps.num_steps, steps.num_tokens) == (11, 27)


def test_a_budget_of_one_makes_a_step_a_token() -> None:
    assert StepCounts.of_prompts({4: 2, 1: 1}, budget=1).counts == {1: 9}


def test_an_enormous_prompt_is_no_work() -> None:
    assert StepCounts.of_prompts({10**9: 10**6}, budget=3).counts == {1: 10**6, 3: 333333333 * 10**6}
