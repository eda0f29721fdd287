"""A decode replica is killed while it serves a stream, 20 times: with `resume` the caller reads on undisturbed.

Three decode replicas share the work, so that one can load again while the other two stand in for each other.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from baton_client import (
    AsyncBatonClient,
    ChatMessage,
    Delta,
    Event,
    Finished,
    FinishReason,
    JsonSchema,
    Prompt,
    Started,
    Usage,
)
from cli.fleet import Fleet, FleetProcess
from tests.e2e.processes import READY_TIMEOUT_S, Deployment, deployed

NUM_KILLS = 20
NUM_DECODE = 3
TEXT = "Once upon a time, in a town by the sea, there lived"
PROPERTIES = ["name", "street", "town"]
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "minLength": 20, "maxLength": 30} for name in PROPERTIES},
    "required": PROPERTIES,
    "additionalProperties": False,
}
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 7, "ignore_eos": True, "max_tokens": 80}
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 80}
CHAT = [ChatMessage("user", "Tell me of the sea.")]
MIN_DELTAS = 30
MAX_ROUNDS = 2 * NUM_KILLS
"""On a busy machine all may have been sent before a kill comes; such rounds do not count."""

Request = tuple[Prompt, dict[str, Any]]


async def requests(client: AsyncBatonClient) -> list[Request]:
    """Of each kind that can be resumed, one; all of them long enough to be killed in."""
    chat = await client.generate(CHAT, **GREEDY)
    return [
        (TEXT, GREEDY),
        (TEXT, {**SEEDED, "token_ids": True, "top_p": 0.95}),
        (TEXT, {**SEEDED, "token_ids": True, "n": 2}),
        (CHAT, {**GREEDY, "token_ids": True, "stop": ["never said", chat.text[-12:]]}),
        (TEXT, {**SEEDED, "token_ids": True, "logprobs": 2}),
        (TEXT, {**SEEDED, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.5}),
        ("A person, as JSON: ", {"temperature": 1.0, "seed": 1, "constraint": JsonSchema(json.dumps(SCHEMA))}),
    ]


class Replicas:
    """The decode processes, one of which may be dead or loading."""

    def __init__(self, deployment: Deployment, stack: AsyncExitStack) -> None:
        self._deployment = deployment
        self._stack = stack
        self._running = {p.spec.name: p for p in deployment.fleet.processes if p.spec.kind == "decode"}
        self._loading: set[asyncio.Task[None]] = set()

    async def kill(self, name: str) -> None:
        """Kills one, and begins to start it again."""
        victim = self._running.pop(name)
        victim.kill()
        await victim.wait()
        task = asyncio.create_task(self._start(victim))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def wait_for_two(self) -> None:
        """Returns when at least two are ready: one to be killed, one to go on."""
        while len(self._running) < 2:
            await asyncio.gather(*self._loading)

    async def wait_for_all(self) -> None:
        """Returns when nothing is loading."""
        await asyncio.gather(*self._loading)

    async def _start(self, dead: FleetProcess) -> None:
        again = Fleet([dead.spec], lambda name, line: self._deployment.lines.append((name, line)))
        await self._stack.enter_async_context(again)
        await again.start()
        await again.wait_ready(READY_TIMEOUT_S)
        self._running[dead.spec.name] = again.processes[0]


async def read(client: AsyncBatonClient, request: Request) -> list[Event]:
    """An undisturbed run."""
    prompt, options = request
    return [event async for event in client.stream(prompt, **options)]


async def read_over_a_kill(
    deployment: Deployment, replicas: Replicas, request: Request, request_id: str, num_deltas: int
) -> list[Event]:
    """A run whose replica is killed after so many deltas, or, at 0, as soon as it has started."""
    prompt, options = request
    events: list[Event] = []
    async with (
        asyncio.timeout(120),
        AsyncBatonClient(deployment.targets) as client,
        client.stream(prompt, request_id=request_id, resume=True, **options) as stream,
    ):
        async for event in stream:
            events.append(event)
            if len(events) == 1 + num_deltas:
                assert not any(isinstance(event, Usage) for event in events)
                await replicas.kill(await serving(deployment, request_id))
    return events


async def serving(deployment: Deployment, request_id: str) -> str:
    """The name of the replica that has fetched the KV of a request."""
    while not (names := fetchers(deployment, request_id)):
        await asyncio.sleep(0.002)
    (name,) = names
    return name


def fetchers(deployment: Deployment, request_id: str) -> set[str]:
    """The replicas that have fetched KV of a request, or of the attempts that followed it."""
    return {
        name
        for name, line in deployment.lines
        if '"kv_fetched"' in line and json.loads(line)["request_id"].split("~")[0] == request_id
    }


def whole(events: Sequence[Event]) -> dict[int, tuple[object, ...]]:
    """What was read, by completion."""
    deltas = [event for event in events if isinstance(event, Delta)]
    return {
        event.index: (
            "".join(delta.text for delta in deltas if delta.index == event.index),
            [token_id for delta in deltas if delta.index == event.index for token_id in delta.token_ids],
            [logprob for delta in deltas if delta.index == event.index for logprob in delta.logprobs],
            event.finish_reason,
            event.matched_stop,
        )
        for event in events
        if isinstance(event, Finished)
    }


def num_deltas(events: Sequence[Event]) -> int:
    return sum(isinstance(event, Delta) for event in events)


def check_undisturbed(runs: Sequence[Sequence[Event]]) -> None:
    """That the requests are what they are meant to be: long enough to be killed in, and of every kind of end."""
    assert all(num_deltas(events) >= MIN_DELTAS for events in runs)
    assert len(whole(runs[2])) == 2
    assert whole(runs[3])[0][3] is FinishReason.STOP
    assert json.loads(str(whole(runs[6])[0][0])).keys() == {*PROPERTIES}


def check(events: Sequence[Event], expected: Sequence[Event], request_id: str) -> None:
    """That nothing of a kill is seen."""
    assert whole(events) == whole(expected), request_id
    started, usage, expected_usage = events[0], events[-1], expected[-1]
    assert isinstance(started, Started)
    assert isinstance(usage, Usage)
    assert isinstance(expected_usage, Usage)
    assert [event for event in events if isinstance(event, Started)] == [started], "told once"
    assert started.request_id == request_id
    assert usage.completion_tokens == expected_usage.completion_tokens, "what was resumed counts"


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("smollm2_dir")
async def test_a_killed_decode_replica_is_not_noticed() -> None:
    generator = random.Random(5)
    quick = {"SERVING__DECODE_BATCH_BUCKETS": "{decode: {decode: [4, 16]}}", "DECODE__NUM_KV_BLOCKS": "256"}
    async with deployed(1, NUM_DECODE, **quick) as deployment, AsyncExitStack() as stack:
        asked = await requests(deployment.client)
        undisturbed = [await read(deployment.client, request) for request in asked]
        check_undisturbed(undisturbed)
        replicas = Replicas(deployment, stack)
        num_kills = 0
        for turn in range(MAX_ROUNDS):
            await replicas.wait_for_two()
            place = num_kills % len(asked)
            after = generator.randint(0, num_deltas(undisturbed[place]) // 2)
            events = await read_over_a_kill(deployment, replicas, asked[place], f"round {turn}", after)
            check(events, undisturbed[place], f"round {turn}")
            num_kills += len(fetchers(deployment, f"round {turn}")) == 2
            if num_kills == NUM_KILLS:
                break
        assert num_kills == NUM_KILLS
        await replicas.wait_for_all()
