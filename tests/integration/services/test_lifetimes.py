"""Whoever goes away, and whenever: every block returns to both pools within a second, with no new request needed."""

import asyncio
import random
from pathlib import Path

import grpc
import pytest
from prometheus_client import Counter

from baton.v1 import generation_pb2 as pb
from baton.v1 import kv_pb2, prefill_pb2, prefill_pb2_grpc
from baton_client import AsyncBatonClient, BatonClientError, Delta, Regex, ResourceExhausted, Started
from decode_service.server import DecodeServer
from prefill_service.servicer import PrefillCore
from tests.services import Split, greedy, running_decode, running_single, running_split, serving_config


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)


async def read(split: Split, token_ids: list[int], num_events: int) -> None:
    """Reads so many events of a long generation, and leaves."""
    async with split.client.stream(token_ids, **greedy(max_tokens=400)) as stream:
        for _ in range(num_events):
            await anext(stream)


@pytest.mark.parametrize("num_events", [0, 1, 2, 5])
async def test_a_client_that_leaves(tiny_llama_dir: Path, num_events: int) -> None:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        await read(split, prompt(300), num_events)
        await split.settled()
        assert split.decode.core.generator.num_live == 0


async def test_three_hundred_cancels_then_a_quiet_answer(tiny_llama_dir: Path) -> None:
    """Cancelled after random times, four at once; reused blocks then give the answer of a quiet run."""
    serving = serving_config(tiny_llama_dir)
    async with running_single(serving) as single:
        quiet = await single.generate(prompt(200, seed=1), **greedy(max_tokens=8))
    async with running_split(serving, prefill={"num_kv_blocks": 100}, decode={"num_kv_blocks": 120}) as split:
        limit = asyncio.Semaphore(4)

        async def cancel_one(index: int) -> None:
            randomness = random.Random(index)
            async with limit:
                call = asyncio.create_task(read(split, prompt(randomness.randint(1, 300), seed=index), 1000))
                await asyncio.wait({call}, timeout=randomness.uniform(0, 0.05))
                call.cancel()
                await asyncio.wait({call})
                assert call.cancelled(), "none of them ends by itself so soon"

        await asyncio.gather(*(cancel_one(index) for index in range(300)))
        await split.settled()
        after = await split.client.generate(prompt(200, seed=1), **greedy(max_tokens=8))
        assert after.completions == quiet.completions
        await split.settled()


async def test_a_prompt_left_half_computed_is_not_taken_for_cached(tiny_llama_dir: Path) -> None:
    """Local prefill, cancelled between chunks: what was not computed must not be reused."""
    serving = serving_config(tiny_llama_dir, local_prefill_max_tokens=None)
    async with (
        running_decode(serving, []) as decode,
        AsyncBatonClient(f"127.0.0.1:{decode.port}") as client,
    ):
        expected = await client.generate(prompt(900, seed=3), **greedy(max_tokens=8))
        was_cut = False
        for salt in map(str, range(5)):
            options = greedy(max_tokens=8, cache_salt=salt)
            num_steps = mixed_steps(decode)
            call = asyncio.create_task(client.generate(prompt(900, seed=3), **options))
            async with asyncio.timeout(10):
                while mixed_steps(decode) == num_steps:
                    await asyncio.sleep(0.001)
            call.cancel()
            await asyncio.wait({call})
            was_cut = was_cut or call.cancelled()
            async with asyncio.timeout(10):
                while decode.core.generator.num_live:
                    await asyncio.sleep(0.001)
            num_computed = 64 * (mixed_steps(decode) - num_steps)
            again = await client.generate(prompt(900, seed=3), **options)
            assert again.usage.cached_tokens <= num_computed
            assert again.completions == expected.completions
        assert was_cut, "a prompt of 15 chunks is cancelled after its first ones"


def mixed_steps(decode: DecodeServer) -> float:
    return decode.metrics.registry.get_sample_value("baton_decode_steps_total", {"walk": "mixed"}) or 0.0


async def test_a_refused_request_never_reaches_prefill(tiny_llama_dir: Path) -> None:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        for options in ({"temperature": -1.0}, {"max_tokens": 0}):
            with pytest.raises(BatonClientError):
                await split.client.generate(prompt(50), **greedy(**options))
        assert split.metric("prefill", "prompt_tokens_total") == 0
        assert split.num_blocks_in_use == 0


async def test_more_requests_than_rows_all_succeed(tiny_llama_dir: Path) -> None:
    rows = {"prefill": 4, "decode": 4}
    buckets = {"decode": {"decode": [1, 2, 4]}}
    serving = serving_config(tiny_llama_dir, max_num_seqs=rows, decode_batch_buckets=buckets)
    async with running_split(serving) as split:
        calls = [split.client.generate(prompt(30, seed=index), **greedy(max_tokens=6)) for index in range(32)]
        results = await asyncio.gather(*calls)
        assert [len(result.completions[0].token_ids) for result in results] == [6] * 32
        await split.settled()


async def test_a_full_queue_says_when_to_try_again(tiny_llama_dir: Path) -> None:
    """Room for one request at a time, and two may wait."""
    async with running_split(
        serving_config(tiny_llama_dir), decode={"num_kv_blocks": 120, "max_queue_len": 2}
    ) as split:
        async with split.client.stream(prompt(50), **greedy(max_tokens=850)) as first:
            assert isinstance(await anext(first), Started)
            waiting = [
                asyncio.create_task(split.client.generate(prompt(50), **greedy(max_tokens=300))) for _ in range(2)
            ]
            async with asyncio.timeout(5):
                while split.metric("decode", "requests_waiting") < 2:
                    await asyncio.sleep(0.005)
            with pytest.raises(ResourceExhausted) as caught:
                await split.client.generate(prompt(50), **greedy(max_tokens=300))
            assert caught.value.reason == "QUEUE_FULL"
            assert caught.value.retry_after is not None
            assert caught.value.retry_after > 0
            assert isinstance(await anext(first), Delta), "the running request is not disturbed"
            waiting[0].cancel()
        await waiting[1]
        await split.settled()


async def test_a_deadline_counts_the_queue(tiny_llama_dir: Path) -> None:
    """A request whose time runs out while it waits is never computed."""
    async with running_split(serving_config(tiny_llama_dir), decode={"num_kv_blocks": 120}) as split:
        async with split.client.stream(prompt(50), **greedy(max_tokens=850)) as first:
            assert isinstance(await anext(first), Started)
            with pytest.raises(BatonClientError) as caught:
                await split.client.generate(prompt(50, seed=2), timeout=0.2, **greedy(max_tokens=300))
            assert caught.value.status is grpc.StatusCode.DEADLINE_EXCEEDED
        await split.settled()
        assert split.metric("prefill", "prompt_tokens_total") == 50


async def test_the_servers_own_time_limit(tiny_llama_dir: Path) -> None:
    """A caller without a deadline gets the configured one, with a reason."""
    async with (
        running_split(serving_config(tiny_llama_dir), decode={"request_timeout_s": 0.3}) as split,
        grpc.aio.insecure_channel(f"127.0.0.1:{split.decode.port}") as channel,
    ):
        request = pb.GenerateRequest(text="hi", stopping=pb.Stopping(max_tokens=900, ignore_eos=True))
        generate: grpc.aio.UnaryUnaryMultiCallable[pb.GenerateRequest, pb.GenerateResponse] = channel.unary_unary(
            "/baton.v1.GenerationService/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(request)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "0.3 s" in str(caught.value.details())
        await split.settled()


async def test_a_decode_that_vanishes_leaves_nothing_on_prefill(tiny_llama_dir: Path) -> None:
    """A Prefill stream that ends without acknowledging anything frees its blocks; its handles are dead afterwards."""
    async with (
        running_split(serving_config(tiny_llama_dir), ["grpc"]) as split,
        grpc.aio.insecure_channel(f"127.0.0.1:{split.prefill.port}") as channel,
    ):
        stub = prefill_pb2_grpc.PrefillServiceStub(channel)
        epoch = split.prefill.core.pool.epoch
        start = prefill_pb2.PrefillStart(request_id="r", epoch=epoch, transport="grpc", token_ids=prompt(100))
        call = stub.Prefill(timeout=20)
        await call.write(prefill_pb2.PrefillRequest(start=start))
        handles: list[kv_pb2.KvHandle] = []
        while not (handles and handles[-1].is_final):
            response = await call.read()
            assert isinstance(response, prefill_pb2.PrefillResponse)
            handles += [response.handle] if response.HasField("handle") else []
        assert split.prefill.core.ledger.counts().in_use == 13
        call.cancel()
        await split.settled()
        fetch = stub.FetchKv(
            prefill_pb2.FetchKvRequest(handle_id=handles[0].handle_id, epoch=epoch, request_id="r"), timeout=5
        )
        with pytest.raises(grpc.aio.AioRpcError, match="released"):
            await fetch.read()


async def test_a_call_cancelled_before_its_first_message_broke_no_protocol(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_split(serving_config(tiny_llama_dir), ["grpc"]) as split,
        grpc.aio.insecure_channel(f"127.0.0.1:{split.prefill.port}") as channel,
    ):
        has_begun, enter = asyncio.Event(), split.prefill.gate.enter
        statuses: asyncio.Queue[str] = asyncio.Queue()
        labels = split.prefill.metrics.requests.labels

        def noticed_enter() -> PrefillCore:
            has_begun.set()
            return enter()

        def noticed_labels(method: str, status: str) -> Counter:
            statuses.put_nowait(status)
            return labels(method=method, status=status)

        monkeypatch.setattr(split.prefill.gate, "enter", noticed_enter)
        monkeypatch.setattr(split.prefill.metrics.requests, "labels", noticed_labels)
        stub = prefill_pb2_grpc.PrefillServiceStub(channel)
        call = stub.Prefill(timeout=20)
        await has_begun.wait()
        call.cancel()
        assert await asyncio.wait_for(statuses.get(), 10) == "CANCELLED"

        wordless = stub.Prefill(timeout=20)
        await wordless.done_writing()
        with pytest.raises(grpc.aio.AioRpcError, match="the first message of a Prefill stream"):
            await wordless.read()
        assert await asyncio.wait_for(statuses.get(), 10) == "INVALID_ARGUMENT"


async def test_fetching_with_wrong_handles(tiny_llama_dir: Path) -> None:
    """Made-up, foreign and old-epoch handles are refused, each with its own reason, and give no bytes."""
    async with (
        running_split(serving_config(tiny_llama_dir), ["grpc"]) as split,
        grpc.aio.insecure_channel(f"127.0.0.1:{split.prefill.port}") as channel,
    ):
        stub = prefill_pb2_grpc.PrefillServiceStub(channel)
        epoch = split.prefill.core.pool.epoch
        call = stub.Prefill(timeout=20)
        start = prefill_pb2.PrefillStart(request_id="r", epoch=epoch, transport="grpc", token_ids=prompt(5))
        await call.write(prefill_pb2.PrefillRequest(start=start))
        await call.read()
        response = await call.read()
        assert isinstance(response, prefill_pb2.PrefillResponse)
        handle_id = response.handle.handle_id
        for wrong, detail in (
            (prefill_pb2.FetchKvRequest(handle_id=b"0" * 16, epoch=epoch, request_id="r"), "no such handle"),
            (prefill_pb2.FetchKvRequest(handle_id=handle_id, epoch=epoch, request_id="q"), "another request"),
            (prefill_pb2.FetchKvRequest(handle_id=handle_id, epoch="old", request_id="r"), "epoch"),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match=detail):
                await stub.FetchKv(wrong, timeout=5).read()
        right = prefill_pb2.FetchKvRequest(handle_id=handle_id, epoch=epoch, request_id="r")
        pieces = [piece async for piece in stub.FetchKv(right, timeout=5)]
        assert sum(len(piece.data) for piece in pieces) == split.prefill.core.pool.layout.block_bytes
        call.cancel()
        await split.settled()


async def test_a_hundred_cancels_of_several_constrained_completions(tiny_llama_dir: Path) -> None:
    """Queued, mid-prompt, as they part, and after some have ended: every block and row returns within a second."""
    serving = serving_config(tiny_llama_dir)
    letters = Regex("[a-z]{20,400}")
    quiet_options = greedy(max_tokens=8, temperature=1.0, seed=3, n=3, constraint=letters)
    async with running_single(serving) as single:
        quiet = await single.generate(prompt(100, seed=1), **quiet_options)
    async with running_split(serving, prefill={"num_kv_blocks": 100}, decode={"num_kv_blocks": 250}) as split:
        limit = asyncio.Semaphore(4)

        async def read_all(index: int) -> None:
            # Some end by their text or at once, so that a request is left with fewer completions than it began with.
            options = greedy(max_tokens=300, temperature=1.0, seed=index, n=3, constraint=letters, stop=("a", "zz"))
            async with split.client.stream(
                prompt(random.Random(index).randint(1, 150), seed=index), **options
            ) as stream:
                async for _ in stream:
                    pass

        async def cancel_one(index: int) -> bool:
            async with limit:
                call = asyncio.create_task(read_all(index))
                await asyncio.wait({call}, timeout=random.Random(index).uniform(0, 0.1))
                call.cancel()
                await asyncio.wait({call})
                return call.cancelled()

        was_cancelled = await asyncio.gather(*(cancel_one(index) for index in range(100)))
        await split.settled()
        assert any(was_cancelled)
        assert split.decode.core.generator.num_live == 0
        assert split.metric("decode", "requests_waiting") == split.metric("decode", "requests_admitted") == 0
        after = await split.client.generate(prompt(100, seed=1), **quiet_options)
        assert after.completions == quiet.completions
        await split.settled()
