"""Prefill replicas that come, go, drain and differ."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton_client import AsyncBatonClient, BatonClientError, Unavailable
from decode_service.server import DecodeServer
from prefill_service.server import PrefillServer
from prefill_service.servicer import PrefillCore
from shared.config.services import PrefillServiceConfig
from shared.worker.engine import Engine
from shared.worker.service import Assembled
from shared.worker.step_loop import StepLoop
from tests.services import greedy, running_decode, running_prefill, running_split, serving_config
from tests.tiny_models import write_tiny_model


def prompt(index: int, length: int = 60) -> list[int]:
    return [(index * 97 + 13 * position) % 256 for position in range(length)]


async def until_ready(decode: DecodeServer, num_replicas: int) -> None:
    async with asyncio.timeout(10):
        while decode.core.replicas.num_ready != num_replicas:
            await asyncio.sleep(0.01)


async def test_no_replica_is_unavailable_at_once(tiny_llama_dir: Path) -> None:
    async with (
        running_decode(serving_config(tiny_llama_dir), [1]) as decode,
        AsyncBatonClient(f"127.0.0.1:{decode.port}") as client,
    ):
        with pytest.raises(Unavailable) as caught:
            await client.generate("hello", timeout=5)
        assert caught.value.reason == "NO_PREFILL_REPLICA"
        assert "127.0.0.1:1" in str(caught.value)


async def test_decode_is_ready_when_the_prefill_that_loads_beside_it_is(tiny_llama_dir: Path) -> None:
    class SlowPrefill(PrefillServer):
        async def assemble(self, engine: Engine, step_loop: StepLoop) -> Assembled[PrefillCore]:
            await asyncio.sleep(1.5)
            return await super().assemble(engine, step_loop)

    serving = serving_config(tiny_llama_dir)
    config = PrefillServiceConfig(port=0, metrics_port=0, threads=1, num_kv_blocks=64, drain_grace_s=1)
    slow = SlowPrefill(config, serving)
    starting = asyncio.create_task(slow.start())
    try:
        async with asyncio.timeout(10):
            while not slow.port:
                await asyncio.sleep(0.01)
        async with running_decode(serving, [slow.port]) as decode:
            assert decode.core.replicas.num_ready == 1
    finally:
        await starting
        await slow.stop()


async def test_no_replica_is_made_up_for_where_the_policy_says_so(tiny_llama_dir: Path) -> None:
    serving = serving_config(tiny_llama_dir)
    async with running_split(serving) as split:
        expected = await split.client.generate(prompt(1), **greedy(max_tokens=5))
    async with (
        running_decode(serving, [1], prefill_unavailable="local") as decode,
        AsyncBatonClient(f"127.0.0.1:{decode.port}") as client,
    ):
        assert (await client.generate(prompt(1), **greedy(max_tokens=5))).completions == expected.completions


async def test_a_replica_that_dies_and_returns(tiny_llama_dir: Path) -> None:
    """Its successor on the same port has another epoch, and is used again."""
    serving = serving_config(tiny_llama_dir)
    async with running_prefill(serving) as stays, running_prefill(serving) as dies:
        port, epoch = dies.port, dies.core.pool.epoch
        async with (
            running_decode(serving, [stays.port, port]) as decode,
            AsyncBatonClient(f"127.0.0.1:{decode.port}") as client,
        ):
            await until_ready(decode, 2)
            calls = [asyncio.create_task(client.generate(prompt(i), **greedy(max_tokens=4))) for i in range(12)]
            await asyncio.sleep(0.05)
            await dies.stop()
            assert len(await asyncio.gather(*calls)) == 12
            await until_ready(decode, 1)
            async with running_prefill(serving, port=port) as returned:
                assert returned.core.pool.epoch != epoch
                await until_ready(decode, 2)
                calls = [asyncio.create_task(client.generate(prompt(i), **greedy(max_tokens=1))) for i in range(40)]
                await asyncio.gather(*calls)
                used = returned.metrics.registry.get_sample_value("baton_prefill_prompt_tokens_total")
                assert used is not None
                assert used > 0


async def test_the_same_prefix_goes_to_the_same_replica(tiny_llama_dir: Path) -> None:
    serving = serving_config(tiny_llama_dir)
    async with (
        running_prefill(serving) as first,
        running_prefill(serving) as second,
        running_decode(serving, [first.port, second.port], num_kv_blocks=30) as decode,
        AsyncBatonClient(f"127.0.0.1:{decode.port}") as client,
    ):
        await until_ready(decode, 2)
        for index in range(8):
            await client.generate([*prompt(3, 64), index], **greedy(max_tokens=1))
        used = [
            server.metrics.registry.get_sample_value("baton_prefill_prompt_tokens_total") for server in (first, second)
        ]
    assert sorted(used) == [0.0, 8 * 65.0]  # type: ignore[type-var]  # both are floats


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kv": {"block_size": 16}}, "layout.block_size"),
        ({"dtype": "bfloat16"}, "layout.dtype"),
        ({"long_prefill_token_threshold": 8}, "long_prefill_token_threshold"),
        ({"max_batch_tokens": {"prefill": 32, "decode": 64}}, "max_batch_tokens.prefill.prefill_text"),
    ],
)
async def test_services_that_differ_refuse_each_other(tiny_llama_dir: Path, change: dict[str, Any], field: str) -> None:
    async with (
        running_prefill(serving_config(tiny_llama_dir)) as prefill,
        running_decode(serving_config(tiny_llama_dir, **change), [prefill.port]) as decode,
        AsyncBatonClient(f"127.0.0.1:{decode.port}") as client,
    ):
        with pytest.raises(Unavailable) as caught:
            await client.generate("hello")
        assert "FAILED_PRECONDITION" in str(caught.value)
        assert field in str(caught.value)


async def test_another_model_is_refused(tiny_llama_dir: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", seed=1)
    async with (
        running_prefill(serving_config(other)) as prefill,
        running_decode(serving_config(tiny_llama_dir), [prefill.port]) as decode,
        AsyncBatonClient(f"127.0.0.1:{decode.port}") as client,
    ):
        with pytest.raises(BatonClientError, match="model_fingerprint"):
            await client.generate("hello")


@pytest.mark.parametrize("transport", ["shm", "grpc"])
async def test_a_draining_prefill_finishes_what_it_began(tiny_llama_dir: Path, transport: str) -> None:
    async with running_split(serving_config(tiny_llama_dir), [transport], prefill={"drain_grace_s": 10}) as split:
        call = asyncio.create_task(split.client.generate(prompt(5, 900), **greedy(max_tokens=4)))
        async with asyncio.timeout(5):
            while not split.metric("prefill", "requests_running"):
                await asyncio.sleep(0.001)
        await split.prefill.stop()
        assert split.metric("decode", "kv_transferred_bytes_total", transport=transport) > 0
        assert len((await call).completions[0].token_ids) == 4
        with pytest.raises(BatonClientError) as caught:
            await split.client.generate(prompt(6), **greedy(max_tokens=4))
        assert caught.value.status is grpc.StatusCode.UNAVAILABLE
