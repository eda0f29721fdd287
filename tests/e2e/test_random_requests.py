"""500 random requests over all fields, 16 at a time: the split system answers as the single process does.

Most are for the tiny random model, which computes hundreds of them a minute and whose every byte is a token, so that
stops, penalties and constraints meet often; the rest are for the default model, whose tokens and answers are real.
Many of the good ones are then resumed from where the single process could have been lost.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import grpc
import pytest

from baton.v1 import generation_pb2 as pb
from shared.config.serving import ServingConfig
from tests.calls import Caller, Streamed, bare, calling, error_details
from tests.e2e.random_requests import MAX_NUM_SEQS, SMOLLM2, TINY, Drawn, Kind, drawn
from tests.services import TINY_SERVING, running_decode, running_split, serving_config

CONCURRENCY = 16
NUM_TINY, NUM_SMOLLM2 = 450, 50

Given = TypeVar("Given")
Taken = TypeVar("Taken")
Outcome = Streamed | str
"""An answer, or status and reason."""


async def each(given: Sequence[Given], ask: Callable[[Given], Awaitable[Taken]]) -> list[Taken]:
    """Asks for each, so many at a time."""
    turn = asyncio.Semaphore(CONCURRENCY)

    async def one(item: Given) -> Taken:
        async with turn:
            return await ask(item)

    return list(await asyncio.gather(*(one(item) for item in given)))


async def outcome(caller: Caller, request: pb.GenerateRequest, streams: bool) -> Outcome:
    """What comes of a request, asked for in one answer or as a stream."""
    try:
        return await caller.streamed(request) if streams else Streamed(await caller.generate(request))
    except grpc.aio.AioRpcError as error:
        info, _ = error_details(error)
        return f"{error.code().name} {info.reason}: {'' if info.reason else error.details()}"


def comparable(result: Outcome, request: pb.GenerateRequest) -> Outcome | pb.GenerateResponse:
    """What must be alike; how much was cached depends on what came before."""
    if isinstance(result, str):
        return result
    answer = bare(result.answer, request)
    answer.usage.ClearField("cached_tokens")
    return answer


def can_resume(request: pb.GenerateRequest) -> bool:
    """Whether the tokens of its answer are known, and it asks for nothing that a resumed request may not."""
    return request.output.token_ids and not request.output.HasField("prompt_logprobs")


def resumed(one: Drawn, whole: Streamed, generator: random.Random) -> tuple[pb.GenerateRequest, pb.GenerateResponse]:
    """The request as it would be sent when its stream was lost at some token, and the answer it must then have."""
    request, expected = pb.GenerateRequest(), pb.GenerateResponse()
    request.CopyFrom(one.request)
    expected.CopyFrom(whole.answer)
    for completion in expected.completions:
        num_tokens = generator.randint(0, len(completion.token_ids))
        rest = whole.deltas[completion.index][num_tokens:]
        request.resume.add(index=completion.index, token_ids=completion.token_ids[:num_tokens])
        completion.text = "".join(delta.text for delta in rest)
        del completion.token_ids[:num_tokens]
        del completion.logprobs[:num_tokens]
    return request, expected


def differences(
    requests: Sequence[pb.GenerateRequest], expected: Sequence[object], found: Sequence[object]
) -> list[str]:
    """Each request whose outcome is another than was expected."""
    return [
        f"{request}\n── expected\n{one}\n── found\n{other}"
        for request, one, other in zip(requests, expected, found, strict=True)
        if one != other
    ]


async def check(serving: ServingConfig, kind: Kind, count: int) -> None:
    cases = drawn(kind, count)
    requests = [case.request for case in cases]
    pools = {"num_kv_blocks": 1024}
    alone = serving.model_copy(update={"local_prefill_max_tokens": None})
    async with running_decode(alone, [], **pools) as server, calling(server.port) as single:
        whole = await each(requests, lambda request: outcome(single, request, streams=True))
    unexpected = [
        f"{case.request}\n── expected {case.reason or 'an answer'}, found {result}"
        for case, result in zip(cases, whole, strict=True)
        if result != f"INVALID_ARGUMENT {case.reason}: " and (case.reason or isinstance(result, str))
    ]
    assert not unexpected, f"{len(unexpected)} unexpected:\n" + "\n".join(unexpected[:3])

    generator = random.Random(count)
    good = [(case, result) for case, result in zip(cases, whole, strict=True) if isinstance(result, Streamed)]
    lost = [pair for pair in good if can_resume(pair[0].request)][::2]
    again = [resumed(case, result, generator) for case, result in lost]
    async with (
        running_split(serving, prefill=pools, decode=pools) as split,
        calling(split.decode.port) as caller,
    ):
        found = await each(requests, lambda request: outcome(caller, request, streams=bool(generator.getrandbits(1))))
        restored = await each(again, lambda pair: outcome(caller, pair[0], streams=True))
        await split.settled(5)
    wrong = differences(
        requests,
        [comparable(result, request) for result, request in zip(whole, requests, strict=True)],
        [comparable(result, request) for result, request in zip(found, requests, strict=True)],
    )
    assert not wrong, f"{len(wrong)} of {count} differ:\n" + "\n".join(wrong[:3])
    wrong = differences(
        [request for request, _ in again],
        [comparable(Streamed(answer), request) for request, answer in again],
        [comparable(result, request) for (request, _), result in zip(again, restored, strict=True)],
    )
    assert not wrong, f"{len(wrong)} of {len(again)} resumed differ:\n" + "\n".join(wrong[:3])


@pytest.mark.timeout(1200)
async def test_random_requests_of_the_tiny_model(tiny_llama_dir: Path) -> None:
    assert TINY_SERVING["max_num_seqs"]["decode"] == MAX_NUM_SEQS
    await check(serving_config(tiny_llama_dir), TINY, NUM_TINY)


@pytest.mark.timeout(1200)
async def test_random_requests_of_the_default_model(smollm2_dir: Path) -> None:
    await check(serving_config(smollm2_dir), SMOLLM2, NUM_SMOLLM2)
