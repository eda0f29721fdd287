"""Batches of requests with several completions, constraints, log-probabilities and resumptions: as behind gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch

from baton.v1 import generation_pb2 as pb
from baton.v1 import generation_pb2_grpc
from decode_service.answers import events_to_proto
from decode_service.offline import OfflineEngine, OfflineFailure, OfflineResult, generate_batch
from shared.config.serving import ServingConfig
from shared.errors import Reason
from tests.services import running_decode, serving_config

PROMPT = [(29 * position + 5) % 256 for position in range(21)]
LENGTH = pb.Stopping(max_tokens=6, ignore_eos=True)


def asked(
    sampling: pb.Sampling, output: pb.Output | None = None, stopping: pb.Stopping = LENGTH, num_prompt: int = 21
) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id="the same for all",
        token_ids=pb.TokenIds(ids=PROMPT[:num_prompt]),
        sampling=sampling,
        stopping=stopping,
        output=output or pb.Output(token_ids=True),
    )


def resuming(message: pb.GenerateRequest, resumed: Mapping[int, Sequence[int]]) -> pb.GenerateRequest:
    """The request, after tokens that were generated before."""
    copy = pb.GenerateRequest()
    copy.CopyFrom(message)
    for index, token_ids in resumed.items():
        copy.resume.add(index=index, token_ids=token_ids)
    return copy


SAMPLED = asked(pb.Sampling(seed=5, n=3), pb.Output(token_ids=True, logprobs=2))
YES_OR_NO = pb.Sampling(seed=7, n=2, choices=pb.Choices(values=["yes", "yesterday", "no"]))
REQUESTS = {
    "several": SAMPLED,
    "several of a whole block": asked(pb.Sampling(seed=5, n=3), num_prompt=16),
    "a constraint": asked(YES_OR_NO, stopping=pb.Stopping(max_tokens=12)),
    "the prompt's log-probabilities": asked(pb.Sampling(temperature=0, n=2), pb.Output(prompt_logprobs=3)),
    "penalties and biases": asked(
        pb.Sampling(seed=3, repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.5, logit_bias={65: 4.0})
    ),
    "resumed": resuming(asked(pb.Sampling(seed=4)), {0: [70, 71, 72]}),
    "several, one of which had ended": resuming(SAMPLED, {0: [70, 71, 72, 73, 74, 75], 2: [76]}),
    "one of several is left": resuming(SAMPLED, {0: [70] * 6, 1: [71, 72], 2: [73] * 6}),
    "all had ended": resuming(SAMPLED, {0: [70] * 6, 1: [71] * 6, 2: [72] * 6}),
}


def essence(response: pb.GenerateResponse) -> pb.GenerateResponse:
    """The answer without times, and without what was cached, which differs from one order to the next."""
    response.usage.ClearField("timings")
    response.usage.ClearField("cached_tokens")
    return response


def answers(
    engine: OfflineEngine, messages: Sequence[pb.GenerateRequest], *, keep_logits: bool = False
) -> list[pb.GenerateResponse]:
    """What the services would answer."""
    outcomes = generate_batch(engine, [engine.request(message) for message in messages], keep_logits=keep_logits)
    assert engine.engine.ledger.counts().in_use == 0
    return [essence(answer(engine, outcome, message)) for outcome, message in zip(outcomes, messages, strict=True)]


def answer(
    engine: OfflineEngine, outcome: OfflineResult | OfflineFailure, message: pb.GenerateRequest
) -> pb.GenerateResponse:
    assert isinstance(outcome, OfflineResult), outcome
    return events_to_proto(outcome.events, message.output.token_ids, engine.model.text_of)


async def served(serving: ServingConfig, messages: Sequence[pb.GenerateRequest]) -> list[pb.GenerateResponse]:
    """What a decode service that computes all itself answers, asked all at once."""
    alone = serving.model_copy(update={"local_prefill_max_tokens": None})
    async with (
        running_decode(alone, []) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        calls = [stub.Generate(resuming(message, {}), timeout=60) for message in renamed(messages)]
        responses = await asyncio.gather(*calls)
    for response in responses:
        response.request_id = "the same for all"
    return [essence(response) for response in responses]


def renamed(messages: Sequence[pb.GenerateRequest]) -> list[pb.GenerateRequest]:
    """With ids of their own, which live requests of a service must have."""
    copies = [resuming(message, {}) for message in messages]
    for index, copy in enumerate(copies):
        copy.request_id = str(index)
    return copies


def open_engine(serving: ServingConfig) -> OfflineEngine:
    return OfflineEngine.open(serving, num_kv_blocks=256, threads=1)


async def test_a_batch_gives_what_the_services_give(tiny_llama_dir: Path) -> None:
    serving = serving_config(tiny_llama_dir)
    messages = list(REQUESTS.values())
    expected = dict(zip(REQUESTS, await served(serving, messages), strict=True))
    with open_engine(serving) as engine:
        assert dict(zip(REQUESTS, answers(engine, messages), strict=True)) == expected
        assert dict(zip(REQUESTS, answers(engine, messages, keep_logits=True), strict=True)) == expected
    with open_engine(serving_config(tiny_llama_dir, max_num_seqs={"prefill": 3, "decode": 3})) as narrow:
        assert dict(zip(REQUESTS, answers(narrow, messages), strict=True)) == expected, "three rows at a time"
    texts = [completion.text for completion in expected["a constraint"].completions]
    assert set(texts) <= {"yes", "yesterday", "no"}
    several = expected["several"].completions
    assert len({tuple(completion.token_ids) for completion in several}) == 3
    assert [len(completion.logprobs) for completion in several] == [6, 6, 6]
    assert len(expected["the prompt's log-probabilities"].prompt_logprobs) == 20
    left = expected["one of several is left"]
    assert [len(completion.token_ids) for completion in left.completions] == [0, 4, 0]
    assert left.usage.completion_tokens == expected["all had ended"].usage.completion_tokens == 18


def test_each_of_several_is_resumed_as_it_would_have_gone_on(tiny_llama_dir: Path) -> None:
    with open_engine(serving_config(tiny_llama_dir)) as engine:
        (whole,) = answers(engine, [SAMPLED])
        full = [list(completion.token_ids) for completion in whole.completions]
        for cuts in ((1, 3, 5), (0, 6, 2), (6, 6, 1)):
            resumed = {index: full[index][:cut] for index, cut in enumerate(cuts) if cut}
            (rest,) = answers(engine, [resuming(SAMPLED, resumed)])
            for completion, token_ids, cut in zip(rest.completions, full, cuts, strict=True):
                assert list(completion.token_ids) == token_ids[cut:]
                assert list(completion.logprobs) == list(whole.completions[completion.index].logprobs)[cut:]


def test_final_logits_are_the_prompts(tiny_llama_dir: Path) -> None:
    greedy = asked(pb.Sampling(temperature=0))
    messages = [greedy, SAMPLED, resuming(SAMPLED, {1: [70, 71]}), resuming(greedy, {0: [70, 71]})]
    with open_engine(serving_config(tiny_llama_dir)) as engine:
        outcomes = generate_batch(engine, [engine.request(message) for message in messages], keep_logits=True)
    one, several, partly, resumed = (outcome for outcome in outcomes if isinstance(outcome, OfflineResult))
    assert one.final_logits is not None
    assert int(one.final_logits.argmax()) == one.token_ids[0]
    for other in (several, partly):
        assert other.final_logits is not None
        assert torch.equal(other.final_logits, one.final_logits)
    assert resumed.final_logits is None, "those of the last resumed token are not the prompt's"


def test_a_completion_that_ends_makes_room_for_the_next_request(tiny_llama_dir: Path) -> None:
    long = asked(pb.Sampling(seed=1, n=3), stopping=pb.Stopping(max_tokens=12, ignore_eos=True))
    ahead = resuming(long, {0: [70] * 11, 1: [71] * 11})
    short = asked(pb.Sampling(seed=2, n=2), stopping=pb.Stopping(max_tokens=2, ignore_eos=True))
    with open_engine(serving_config(tiny_llama_dir, max_num_seqs={"prefill": 3, "decode": 3})) as engine:
        outcomes = list(engine.run([engine.request(ahead), engine.request(short)]))
    assert [outcome.index for outcome in outcomes] == [1, 0]


def test_what_cannot_have_been_generated_fails_alone(tiny_llama_dir: Path) -> None:
    wrong = resuming(asked(YES_OR_NO), {1: list(b"maybe")[:1]})
    with open_engine(serving_config(tiny_llama_dir)) as engine:
        failed, done = generate_batch(engine, [engine.request(wrong), engine.request(SAMPLED)])
        assert isinstance(failed, OfflineFailure)
        assert failed.error.reason is Reason.RESUME_INVALID
        assert isinstance(done, OfflineResult)


@pytest.mark.parametrize("num_outcomes", [1, 2])
def test_leaving_early_frees_all(tiny_llama_dir: Path, num_outcomes: int) -> None:
    with open_engine(serving_config(tiny_llama_dir)) as engine:
        short = replace(engine.request(SAMPLED), logprobs=None)
        long = engine.request(asked(pb.Sampling(seed=1, n=3), stopping=pb.Stopping(max_tokens=300, ignore_eos=True)))
        constrained = engine.request(REQUESTS["a constraint"])
        outcomes = engine.run([long, constrained, short])
        for _ in range(num_outcomes):
            next(outcomes)
        assert engine.engine.ledger.counts().in_use > 0
        outcomes.close()  # type: ignore[attr-defined]  # a generator
        assert engine.engine.ledger.counts().in_use == 0
        first, again = answers(engine, [SAMPLED]), answers(engine, [SAMPLED])
        assert first == again
