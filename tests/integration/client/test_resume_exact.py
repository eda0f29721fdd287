"""A stream cut after each of its messages and resumed is, to its caller, the stream that nothing cut: real services."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import generation_pb2 as pb
from baton.v1.generation_pb2_grpc import GenerationServiceStub
from baton_client.resumption import ResumableExchange
from tests.services import running_split, serving_config

if TYPE_CHECKING:
    from baton.v1.generation_pb2_grpc import GenerationServiceAsyncStub

PROMPT = pb.TokenIds(ids=[(13 * position) % 256 for position in range(40)])

REQUESTS = {
    "several completions": pb.StreamGenerateRequest(
        token_ids=PROMPT,
        sampling=pb.Sampling(seed=5, n=3),
        stopping=pb.Stopping(max_tokens=6, ignore_eos=True),
        output=pb.Output(logprobs=2),
    ),
    "stops that are held back, penalties": pb.StreamGenerateRequest(
        token_ids=PROMPT,
        sampling=pb.Sampling(seed=6, frequency_penalty=0.5, repetition_penalty=1.2),
        stopping=pb.Stopping(max_tokens=16, ignore_eos=True, stop=["never to be seen"]),
        output=pb.Output(token_ids=True, prompt_logprobs=1),
    ),
}


async def _seen(
    stub: "GenerationServiceAsyncStub", exchange: ResumableExchange, num_messages: int | None = None
) -> list[pb.StreamGenerateResponse]:
    """What the caller sees of one attempt, which is left after so many messages."""
    seen: list[pb.StreamGenerateResponse] = []
    call = stub.StreamGenerate(exchange.next_request(), timeout=60)
    num_read = 0
    async for message in call:
        if (passed := exchange.pass_on(message)) is not None:
            seen.append(passed)
        num_read += 1
        if num_read == num_messages:
            call.cancel()
            break
    return seen


def _essence(messages: Sequence[pb.StreamGenerateResponse]) -> list[tuple[int, object]]:
    """The events by index, without ids and timings, which differ from call to call."""
    events: list[tuple[int, object]] = []
    for message in messages:
        match message.WhichOneof("event"):
            case "started":
                events.append((-1, [str(entry) for entry in message.started.prompt_logprobs]))
            case "delta":
                events.append((message.delta.index, str(message.delta)))
            case "finished":
                events.append((message.finished.index, str(message.finished)))
            case "usage":
                events.append((99, message.usage.completion_tokens))
    return sorted(events, key=lambda event: event[0])


@pytest.mark.parametrize("request_message", REQUESTS.values(), ids=REQUESTS)
async def test_cut_anywhere(tiny_llama_dir: Path, request_message: pb.StreamGenerateRequest) -> None:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        address = f"127.0.0.1:{split.decode.port}"
        async with grpc.aio.insecure_channel(address) as channel:
            stub = GenerationServiceStub(channel)
            whole = await _seen(stub, ResumableExchange(request_message))
            for num_messages in range(1, len(whole)):
                exchange = ResumableExchange(request_message)
                cut = [*await _seen(stub, exchange, num_messages), *await _seen(stub, exchange)]
                assert _essence(cut) == _essence(whole), num_messages
                assert exchange.is_complete
