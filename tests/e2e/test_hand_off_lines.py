"""What must hold across the hand-off: the real model, split and whole, in this process."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
import torch
import transformers

from baton_client import (
    AsyncBatonClient,
    ChatMessage,
    Completion,
    FinishReason,
    GenerateResult,
    JsonSchema,
    Prompt,
    TokenLogprobs,
)
from shared.text.tokenizer import Tokenizer
from tests.integration.services.vectors import recorded
from tests.services import Split, greedy, running_single, running_split, serving_config

TEXT = (
    "The history of computing begins with mechanical devices. In 1936 Alan Turing described an abstract machine "
    "which reads symbols from a tape; later, engineers built electronic machines with thousands of vacuum tubes, and "
    "programmers wrote code such as `for i in range(10): print(i)` to control them. Zürich, 北京 and Nice took part."
)
QUESTION = [ChatMessage("user", "What is the capital of France?")]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
RAGGED = [
    [(997 * length + 31 * place) % 49152 for place in range(length)] for length in (1, 7, 8, 9, 15, 16, 17, 63, 65)
]


@dataclass(frozen=True)
class Both:
    """The split system, and the single process that it must equal."""

    split: Split
    single: AsyncBatonClient

    async def ask(self, prompt: Prompt, **options: Any) -> GenerateResult:
        """The split system's answer, once it is found equal to the single process's."""
        whole = await self.single.generate(prompt, **options)
        answer = await self.split.client.generate(prompt, **options)
        assert answer.completions == whole.completions
        assert answer.prompt_logprobs == whole.prompt_logprobs
        return answer

    async def ask_one(self, prompt: Prompt, **options: Any) -> Completion:
        """The one completion of `ask`."""
        (completion,) = (await self.ask(prompt, **options)).completions
        return completion

    def num_decoded(self) -> float:
        """Tokens that the decode service generated."""
        return self.split.metric("decode", "generated_tokens_total")


@pytest_asyncio.fixture(name="both", scope="module", loop_scope="module")
async def _both(smollm2_dir: Path) -> AsyncGenerator[Both]:
    serving = serving_config(smollm2_dir)
    async with running_split(serving) as split, running_single(serving) as single:
        yield Both(split, single)


@pytest_asyncio.fixture(name="alone", scope="module", loop_scope="module")
async def _alone(both: Both) -> list[tuple[Completion, ...]]:
    """What the single process answers to each of RAGGED."""
    answers = [(await both.single.generate(prompt, **greedy(max_tokens=4))).completions for prompt in RAGGED]
    assert len(set(answers)) >= len(answers) - 1, "outputs that are all alike would prove nothing"
    return answers


@pytest_asyncio.fixture(name="answered", scope="module", loop_scope="module")
async def _answered(both: Both) -> list[int]:
    """A question with its whole answer, after which the model's own end of sequence is next."""
    answer = await both.ask_one(QUESTION, temperature=0, max_tokens=32, token_ids=True)
    assert answer.finish_reason is FinishReason.STOP
    return [*await both.split.client.tokenize(QUESTION), *answer.token_ids[:-1]]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 5, 8, 9])
async def test_greedy_output_is_the_single_process_s_on_both_sides_of_each_rung(
    both: Both, alone: list[tuple[Completion, ...]], batch_size: int
) -> None:
    """Rungs are 1, 2, 4 and 8 rows, and 8 to 64 tokens; at 9 one waits."""
    prompts = RAGGED[:batch_size]
    options = greedy(max_tokens=4, cache_salt=f"batch of {batch_size}")
    answers = await asyncio.gather(*(both.split.client.generate(prompt, **options) for prompt in prompts))
    assert [answer.completions for answer in answers] == alone[:batch_size]


class TestFirstTokenEndsTheText:
    async def test_end_of_sequence(self, both: Both, answered: list[int]) -> None:
        await both.split.settled()  # a step that an earlier request did not wait for
        num_decoded = both.num_decoded()
        result = await both.ask(answered, temperature=0, max_tokens=8, token_ids=True)
        (completion,) = result.completions
        (eos_token_id,) = (await both.split.client.get_model()).eos_token_ids
        assert (completion.text, completion.token_ids) == ("", (eos_token_id,))
        assert (completion.finish_reason, completion.matched_stop) == (FinishReason.STOP, eos_token_id)
        assert result.usage.completion_tokens == 1
        assert both.num_decoded() == num_decoded, "nothing more is generated"

    async def test_a_stop_token(self, both: Both) -> None:
        (first,) = (await both.ask_one(TEXT, **greedy(max_tokens=1))).token_ids
        await both.split.settled()  # a step that an earlier request did not wait for
        num_decoded = both.num_decoded()
        completion = await both.ask_one(TEXT, **greedy(max_tokens=8, stop_token_ids=[first]))
        assert (completion.token_ids, completion.finish_reason) == ((first,), FinishReason.STOP)
        assert (completion.text, completion.matched_stop) == ("", first)
        assert both.num_decoded() == num_decoded, "nothing more is generated"

    async def test_a_stop_string(self, both: Both) -> None:
        first = await both.ask_one(TEXT, **greedy(max_tokens=1))
        await both.split.settled()  # a step that an earlier request did not wait for
        num_decoded = both.num_decoded()
        completion = await both.ask_one(TEXT, **greedy(max_tokens=8, stop=first.text))
        assert (completion.token_ids, completion.finish_reason) == (first.token_ids, FinishReason.STOP)
        assert (completion.text, completion.matched_stop) == ("", first.text)
        assert both.num_decoded() == num_decoded, "nothing more is generated"


async def test_ignore_eos_holds_across_the_hand_off(both: Both, answered: list[int]) -> None:
    completion = await both.ask_one(answered, **greedy(max_tokens=4))
    eos_token_ids = (await both.split.client.get_model()).eos_token_ids
    assert completion.token_ids[0] in eos_token_ids
    assert (len(completion.token_ids), completion.finish_reason) == (4, FinishReason.LENGTH)


@pytest.mark.parametrize("min_tokens", [1, 3])
async def test_min_tokens_hold_across_the_hand_off(both: Both, answered: list[int], min_tokens: int) -> None:
    completion = await both.ask_one(answered, temperature=0, max_tokens=5, min_tokens=min_tokens, token_ids=True)
    eos_token_ids = (await both.split.client.get_model()).eos_token_ids
    assert len(completion.token_ids) > min_tokens
    assert not set(completion.token_ids[:min_tokens]) & set(eos_token_ids)


async def test_a_stop_string_may_span_the_first_and_the_second_token(both: Both) -> None:
    first, two = [await both.ask_one(TEXT, **greedy(max_tokens=max_tokens)) for max_tokens in (1, 2)]
    stop = two.text[len(first.text) - 1 :]
    assert len(stop) >= 2, "a letter of the first token, and the second"
    completion = await both.ask_one(TEXT, **greedy(max_tokens=8, stop=stop))
    assert (completion.text, completion.token_ids) == (first.text[:-1], two.token_ids)
    assert (completion.finish_reason, completion.matched_stop) == (FinishReason.STOP, stop)
    kept = await both.ask_one(TEXT, **greedy(max_tokens=8, stop=stop, include_stop=True))
    assert kept.text == two.text


async def test_one_token_at_most_is_all_of_it(both: Both) -> None:
    await both.split.settled()
    num_decoded = both.num_decoded()
    completion = await both.ask_one(TEXT, **greedy(max_tokens=1))
    assert (len(completion.token_ids), completion.finish_reason) == (1, FinishReason.LENGTH)
    assert both.num_decoded() == num_decoded
    await both.split.settled()


async def test_log_probabilities_of_prompt_and_first_token_survive(both: Both, smollm2_dir: Path) -> None:
    """Equal to the single process's, and within 0.05 nats of transformers in float32 at 99% of positions."""
    prompt = await both.split.client.tokenize(TEXT)
    options = greedy(max_tokens=4, logprobs=5, prompt_logprobs=5)
    result = await both.ask(prompt, **options)
    (completion,) = result.completions
    entries = [*result.prompt_logprobs, *completion.logprobs]
    token_ids = [*prompt, *completion.token_ids]
    assert [entry.token.token_id for entry in entries] == token_ids[1:]

    reference_model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    with torch.inference_mode():
        reference = reference_model(torch.tensor([token_ids])).logits[0].double().log_softmax(-1)
    is_close = [entry_is_close(entry, row) for entry, row in zip(entries, reference[:-1], strict=True)]
    assert sum(is_close) >= 0.99 * len(is_close)
    assert is_close[len(prompt) - 1], "the first token"


def entry_is_close(entry: TokenLogprobs, reference: torch.Tensor) -> bool:
    """Whether the token and its alternatives have the reference's log-probabilities, and all is in order."""
    ranks = [alternative.rank for alternative in entry.alternatives]
    assert ranks == [1, 2, 3, 4, 5]
    if entry.token.rank <= 5:
        assert entry.token == entry.alternatives[entry.token.rank - 1]
    return all(
        abs(logprob.logprob - float(reference[logprob.token_id])) <= 0.05
        for logprob in (entry.token, *entry.alternatives)
    )


@pytest.mark.parametrize("seed", range(3))
async def test_grammar_state_advances_once(both: Both, seed: int) -> None:
    """Prefill draws the first token, decode the rest: a state that advanced twice, or never, allows no such text."""
    options = {"temperature": 1.0, "seed": seed, "max_tokens": 64, "constraint": JsonSchema(json.dumps(SCHEMA))}
    completion = await both.ask_one("A person, as JSON: ", token_ids=True, **options)
    assert completion.finish_reason is FinishReason.STOP
    jsonschema.validate(json.loads(completion.text), SCHEMA)


async def test_several_completions_from_one_prefill(both: Both) -> None:
    prompt = (await both.split.client.tokenize(TEXT))[:61]  # ends inside a block
    num_prefilled = both.split.metric("prefill", "prompt_tokens_total")
    with recorded() as recording:
        answer = await both.split.client.generate(prompt, n=4, **sampled(cache_salt="n"))
    assert both.split.metric("prefill", "prompt_tokens_total") == num_prefilled + len(prompt)
    assert sum(num_tokens for start, num_tokens, _ in recording.chunks if start < len(prompt)) == len(prompt)
    whole = await both.single.generate(prompt, n=4, **sampled(cache_salt="n"))
    assert answer.completions == whole.completions
    assert [completion.index for completion in answer.completions] == [0, 1, 2, 3]
    assert all(completion.finish_reason is FinishReason.LENGTH for completion in answer.completions)
    assert [len(completion.token_ids) for completion in answer.completions] == [8] * 4
    assert len({completion.token_ids for completion in answer.completions}) == 4
    (alone,) = (await both.single.generate(prompt, **sampled())).completions
    assert alone == answer.completions[0], "how many others there are changes nothing"
    await both.split.settled()


def sampled(**more: Any) -> dict[str, Any]:
    return {"temperature": 1.0, "seed": 3, "max_tokens": 8, "ignore_eos": True, "token_ids": True, **more}


@pytest.mark.parametrize("prompt", [TEXT, QUESTION], ids=["text", "chat"])
async def test_the_prompt_is_tokenized_once(both: Both, prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both services are in this process, so each of their calls is counted."""
    encode, texts = Tokenizer._encode, list[str]()

    def counted(self: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
        texts.append(text)
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "_encode", counted)
    await both.split.client.generate(prompt, max_tokens=4, temperature=0, stop=["never", "ever"])
    assert len(texts) == 1


async def test_cached_tokens_are_those_that_were_not_computed(both: Both) -> None:
    prompt = (await both.split.client.tokenize(TEXT))[:61]
    turns: list[tuple[list[int], int]] = [
        (prompt, 0),
        (prompt, 56),  # whole blocks, and at least one token is left to compute
        (prompt[:40] + prompt[:21], 40),
        (prompt[:39] + prompt[:21], 32),
    ]
    for turn, (token_ids, num_cached) in enumerate(turns):
        with recorded() as recording:
            result = await both.split.client.generate(token_ids, **greedy(max_tokens=2, cache_salt="counted"))
        computed = sum(num_tokens for start, num_tokens, _ in recording.chunks if start < len(token_ids))
        assert (result.usage.cached_tokens, computed) == (num_cached, len(token_ids) - num_cached), f"turn {turn}"
