"""What holds for prompts of token ids holds for prompts of vectors: reuse, cancelling, replicas that fail, refusals."""

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from baton.v1 import generation_pb2 as pb
from baton.v1 import prefill_pb2, prefill_pb2_grpc
from baton_client import AsyncBatonClient, Embeddings, Started
from decode_service.server import DecodeServer
from prefill_service.server import PrefillServer
from shared.engine.runner import Runner
from shared.engine.step import BeforeCompute, StepRow
from shared.rpc.options import MAX_REQUEST_BYTES
from tests.integration.services.vectors import embedded, table_of
from tests.services import Split, greedy, running_decode, running_prefill, running_single, running_split, serving_config

HIDDEN_SIZE = 64


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)


@pytest.fixture(name="table", scope="module")
def _table(tiny_llama_dir: Path) -> torch.Tensor:
    return table_of(tiny_llama_dir)


async def cached(client: AsyncBatonClient, wanted: Embeddings | Sequence[int], **options: Any) -> int:
    return (await client.generate(wanted, **greedy(max_tokens=2, **options))).usage.cached_tokens


async def test_only_equal_vectors_are_found_in_the_caches(tiny_llama_dir: Path, table: torch.Tensor) -> None:
    token_ids = prompt(100)
    rows = table[torch.tensor(token_ids)]
    nearly = rows.clone()
    nearly[50, 7] = torch.nextafter(nearly[50, 7], torch.tensor(1.0))
    async with running_split(serving_config(tiny_llama_dir)) as split:
        client, vectors = split.client, embedded(token_ids, table)
        cold = await client.generate(vectors, **greedy(max_tokens=12))
        warm = await client.generate(vectors, **greedy(max_tokens=12))
        assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 96)
        assert warm.completions == cold.completions
        assert await cached(client, Embeddings.from_array(nearly.numpy())) == 48
        assert await cached(client, vectors, cache_salt="other") == 0
        assert await cached(client, token_ids) == 0
        assert await cached(client, Embeddings.from_array(np.zeros((100, HIDDEN_SIZE), np.float32))) == 0
        assert await cached(client, [0] * 100) == 0


async def test_the_encoding_of_equal_vectors_does_not_matter(tiny_llama_dir: Path, table: torch.Tensor) -> None:
    token_ids, rounded = prompt(100), table.bfloat16().float()
    async with running_split(serving_config(tiny_llama_dir)) as split:
        first = await split.client.generate(embedded(token_ids, rounded), **greedy(max_tokens=12))
        second = await split.client.generate(embedded(token_ids, rounded, "bfloat16"), **greedy(max_tokens=12))
    assert second.usage.cached_tokens == 96
    assert second.completions == first.completions


async def test_a_short_uncached_rest_is_computed_by_decode(tiny_llama_dir: Path, table: torch.Tensor) -> None:
    serving = serving_config(tiny_llama_dir, local_prefill_max_tokens=16)
    async with running_single(serving) as single:
        expected = await single.generate(prompt(79), **greedy(max_tokens=8))
    async with running_split(serving) as split:
        await cached(split.client, embedded(prompt(79)[:70], table))
        sent = split.metric("prefill", "prompt_tokens_total")
        found = await split.client.generate(embedded(prompt(79), table), **greedy(max_tokens=8))
        assert (sent, split.metric("prefill", "prompt_tokens_total")) == (70, 70)
        assert found.usage.cached_tokens == 64
        assert found.completions == expected.completions


async def test_sampled_output_is_that_of_the_text(tiny_llama_dir: Path, table: torch.Tensor) -> None:
    options: Any = {**greedy(max_tokens=20), "temperature": 1.0, "seed": 11, "top_p": 0.9}
    async with running_split(serving_config(tiny_llama_dir)) as split:
        of_text = await split.client.generate(prompt(40), **options)
        of_vectors = await split.client.generate(embedded(prompt(40), table), **options)
        async with split.client.stream(embedded(prompt(40), table), **{**options, "cache_salt": "s"}) as stream:
            events = [event async for event in stream]
    assert of_vectors.completions == of_text.completions
    assert isinstance(events[0], Started)
    assert (events[0].prompt_tokens, events[0].cached_tokens) == (40, 0)


async def test_many_at_once_beside_texts(tiny_llama_dir: Path, table: torch.Tensor) -> None:
    """Rows of vectors and rows of ids share steps."""
    prompts = [prompt(length, seed=length) for length in (1, 5, 8, 9, 30, 64, 65, 130)]
    async with running_split(serving_config(tiny_llama_dir)) as split:
        expected = [await split.client.generate(ids, **greedy(max_tokens=8, cache_salt="quiet")) for ids in prompts]
        wanted: list[Embeddings | list[int]] = [*prompts, *(embedded(ids, table) for ids in prompts)]
        found = await asyncio.gather(*(split.client.generate(one, **greedy(max_tokens=8)) for one in wanted))
        assert [result.completions for result in found] == [result.completions for result in expected] * 2
        await split.settled()


@pytest.mark.parametrize("num_events", [0, 1, 2, 5])
async def test_a_client_that_leaves(tiny_llama_dir: Path, table: torch.Tensor, num_events: int) -> None:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        async with split.client.stream(embedded(prompt(300), table), **greedy(max_tokens=400)) as stream:
            for _ in range(num_events):
                await anext(stream)
        await split.settled()
        assert split.decode.core.generator.num_live == 0


async def test_clients_that_leave_at_any_time(tiny_llama_dir: Path, table: torch.Tensor) -> None:
    serving = serving_config(tiny_llama_dir)
    async with running_split(serving, prefill={"num_kv_blocks": 100}, decode={"num_kv_blocks": 120}) as split:
        quiet = await split.client.generate(prompt(200, seed=1), **greedy(max_tokens=8))
        for index in range(60):
            randomness = random.Random(index)
            vectors = embedded(prompt(randomness.randint(1, 300), seed=index), table)
            call = asyncio.create_task(split.client.generate(vectors, **greedy(max_tokens=400)))
            await asyncio.wait({call}, timeout=randomness.uniform(0, 0.03))
            call.cancel()
            await asyncio.wait({call})
        await split.settled()
        after = await split.client.generate(embedded(prompt(200, seed=1), table), **greedy(max_tokens=8))
        assert after.completions == quiet.completions


@asynccontextmanager
async def two_replicas(
    model: Path, **decode: object
) -> AsyncGenerator[tuple[list[PrefillServer], DecodeServer, AsyncBatonClient]]:
    serving = serving_config(model)
    async with (
        running_prefill(serving, drain_grace_s=0) as first,
        running_prefill(serving, drain_grace_s=0) as second,
        running_decode(serving, [first.port, second.port], **decode) as server,
        AsyncBatonClient(f"127.0.0.1:{server.port}") as client,
    ):
        async with asyncio.timeout(10):
            while server.core.replicas.num_ready < 2:
                await asyncio.sleep(0.01)
        yield [first, second], server, client


class Saboteur:
    """Acts on the runner of whichever service is the first to compute a chunk of vectors, before its third one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.victim: Runner | None = None
        self.num_chunks = 0
        self._run = Runner.run
        sabotage = self.act

        def run(runner: Runner, walk: str, rows: Sequence[StepRow], before_compute: BeforeCompute) -> torch.Tensor:
            if rows[0].input_embeddings is not None:
                sabotage(runner)
            return self._run(runner, walk, rows, before_compute)

        monkeypatch.setattr(Runner, "run", run)

    def act(self, runner: Runner) -> None:
        self.victim = self.victim or runner
        if runner is self.victim:
            self.num_chunks += 1
            if self.num_chunks == 3:
                self.strike()

    def strike(self) -> None:
        raise RuntimeError("no memory")


async def test_a_failed_step_is_made_up_for_by_the_other_replica(
    tiny_llama_dir: Path, table: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_replicas(tiny_llama_dir) as (replicas, _, client):
        expected = await client.generate(prompt(300), **greedy(max_tokens=8))
        saboteur = Saboteur(monkeypatch)
        found = await client.generate(embedded(prompt(300), table), **greedy(max_tokens=8))
        assert saboteur.num_chunks == 3
        assert found.completions == expected.completions
        assert found.usage.prompt_tokens == 300
        async with asyncio.timeout(1):
            while any(replica.core.ledger.counts().in_use for replica in replicas):
                await asyncio.sleep(0.005)


async def test_a_replica_that_stops_is_made_up_for_by_the_other(
    tiny_llama_dir: Path, table: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops while its step loop computes the third of five chunks, and the first ones were fetched."""

    class Halting(Saboteur):
        may_go_on = threading.Event()

        def strike(self) -> None:
            self.may_go_on.wait()

    async with two_replicas(tiny_llama_dir) as (replicas, server, client):
        expected = await client.generate(prompt(300), **greedy(max_tokens=8))
        saboteur = Halting(monkeypatch)
        call = asyncio.create_task(client.generate(embedded(prompt(300), table), **greedy(max_tokens=8)))
        try:
            async with asyncio.timeout(10):
                while saboteur.num_chunks < 3:
                    await asyncio.sleep(0.001)
            (halted,) = [replica for replica in replicas if replica.core.scheduler.load().num_running]
            stopping = asyncio.create_task(halted.stop())
            found = await asyncio.wait_for(call, 10)
        finally:
            saboteur.may_go_on.set()
        await stopping
        assert found.completions == expected.completions
        assert server.core.replicas.num_ready == 1
        assert server.core.ledger.counts().in_use == 0


async def test_without_a_replica_decode_computes_vectors_itself(tiny_llama_dir: Path, table: torch.Tensor) -> None:
    serving = serving_config(tiny_llama_dir)
    async with (
        running_decode(serving, [1], prefill_unavailable="local") as decode,
        AsyncBatonClient(f"127.0.0.1:{decode.port}") as client,
    ):
        expected = await client.generate(prompt(90), **greedy(max_tokens=5))
        found = await client.generate(embedded(prompt(90), table), **greedy(max_tokens=5))
    assert found.completions == expected.completions


async def test_the_model_says_how_long_vectors_are(tiny_llama_dir: Path) -> None:
    async with running_single(serving_config(tiny_llama_dir)) as client:
        assert (await client.get_model()).hidden_size == HIDDEN_SIZE


def vectors(num_tokens: int = 2, dtype: str = "float32", value: float = 1.0, at: int = 0) -> pb.Embeddings:
    values = np.ones(num_tokens * HIDDEN_SIZE, np.float32)
    values[at] = value
    return pb.Embeddings(data=values.tobytes(), num_tokens=num_tokens, dtype=dtype)


def start(split: Split, **fields: Any) -> prefill_pb2.PrefillStart:
    sampling = pb.Sampling(temperature=0)
    return prefill_pb2.PrefillStart(
        request_id="r", epoch=split.prefill.core.pool.epoch, transport="grpc", sampling=sampling, **fields
    )


PREFILL_REFUSES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"embeddings": pb.Embeddings()}, "the prompt is empty"),
    "too many": ({"embeddings": pb.Embeddings(num_tokens=1024)}, "the prompt has 1024 tokens"),
    "both kinds": ({"embeddings": vectors(), "token_ids": [0, 0]}, "token_ids in place of a prompt of embeddings"),
    "dtype": ({"embeddings": vectors(dtype="float64")}, "embeddings.dtype is 'float64'"),
    "size": ({"embeddings": vectors(3, dtype="bfloat16")}, "has 768 bytes; 3 vectors of 64 bfloat16 values"),
    "not finite": (
        {"embeddings": vectors(3, value=float("nan"), at=130)},
        "value 2 of the vector at position 2 is nan",
    ),
    "not by blocks": ({"embeddings": vectors(), "first_needed_token": 1}, "first_needed_token is 1"),
}


@pytest.mark.parametrize(("fields", "message"), PREFILL_REFUSES.values(), ids=PREFILL_REFUSES)
async def test_prefill_checks_what_decode_sends(tiny_llama_dir: Path, fields: dict[str, Any], message: str) -> None:
    async with (
        running_split(serving_config(tiny_llama_dir), ["grpc"]) as split,
        grpc.aio.insecure_channel(f"127.0.0.1:{split.prefill.port}") as channel,
    ):
        stub: prefill_pb2_grpc.PrefillServiceAsyncStub = prefill_pb2_grpc.PrefillServiceStub(channel)
        call = stub.Prefill(timeout=10)
        await call.write(prefill_pb2.PrefillRequest(start=start(split, **fields)))
        with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert split.metric("prefill", "prompt_tokens_total") == 0
        assert split.num_blocks_in_use == 0
        await split.client.generate([1, 2], max_tokens=1)


async def test_a_message_larger_than_any_request_is_refused_by_its_size(tiny_llama_dir: Path) -> None:
    async with (
        running_split(serving_config(tiny_llama_dir)) as split,
        grpc.aio.insecure_channel(f"127.0.0.1:{split.decode.port}", [("grpc.max_send_message_length", -1)]) as channel,
    ):
        generate: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        generate = channel.unary_unary("/baton.v1.GenerationService/Generate")
        with pytest.raises(grpc.aio.AioRpcError, match=f"larger than max .{MAX_REQUEST_BYTES + 1} vs.") as caught:
            await generate(bytes(MAX_REQUEST_BYTES + 1), timeout=30)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await split.client.generate([1, 2], max_tokens=1)


async def test_the_largest_finite_values_disturb_nobody(tiny_llama_dir: Path, table: torch.Tensor) -> None:
    """Neither those that share their steps, nor those that get their blocks afterwards."""
    extreme = np.full((100, HIDDEN_SIZE), np.finfo(np.float32).max)
    extreme[:, ::2] *= -1
    vectors_of_extremes = Embeddings.from_array(extreme.astype(np.float32))
    async with running_split(
        serving_config(tiny_llama_dir), prefill={"num_kv_blocks": 30}, decode={"num_kv_blocks": 30}
    ) as split:
        quiet = await split.client.generate(prompt(93), **greedy(max_tokens=8))
        for salt in "abc":
            options = greedy(max_tokens=8, cache_salt=salt)
            wanted: list[Embeddings | list[int]] = [vectors_of_extremes, embedded(prompt(93), table), prompt(93)]
            of_extremes, *others = await asyncio.gather(*(split.client.generate(one, **options) for one in wanted))
            assert of_extremes.usage.completion_tokens == 8
            assert [other.completions for other in others] == [quiet.completions] * 2
        await split.settled()
