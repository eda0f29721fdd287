"""Real services in this process, on free ports, for tests."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from baton_client import AsyncBatonClient, Options
from decode_service.server import DecodeServer
from prefill_service.server import PrefillServer
from shared.config.services import DecodeServiceConfig, PrefillServiceConfig
from shared.config.serving import ServingConfig

Settings = Mapping[str, Any]

_FREE_PORTS: Settings = {"host": "127.0.0.1", "port": 0, "metrics_port": 0, "threads": 1, "drain_grace_s": 1}

TINY_SERVING: Settings = {
    "max_batch_tokens": {"prefill": {"prefill_text": 64}, "decode": {"mixed": 64}},
    "kv": {"block_size": 8},
    "max_num_seqs": {"prefill": 8, "decode": 8},
    "prefill_token_buckets": {"prefill": {"prefill_text": [8, 16, 32, 64]}, "decode": {"mixed": [8, 16, 32, 64]}},
    "decode_batch_buckets": {"decode": {"decode": [1, 2, 4, 8]}},
}
"""Small steps, so that short prompts already run in chunks."""


def serving_config(model: Path, settings: Settings = TINY_SERVING, **overrides: object) -> ServingConfig:
    """The shared config of a model."""
    return ServingConfig.model_validate({"model": str(model), **settings, **overrides})


def greedy(**more: Unpack[Options]) -> Options:
    """Options of a request whose whole length is wanted, with its token ids."""
    defaults: Options = {"temperature": 0, "ignore_eos": True, "token_ids": True}
    return {**defaults, **more}


@asynccontextmanager
async def running_prefill(serving: ServingConfig, **settings: object) -> AsyncGenerator[PrefillServer]:
    """A prefill service."""
    config = {**_FREE_PORTS, "num_kv_blocks": 256, **settings}
    server = PrefillServer(PrefillServiceConfig.model_validate(config), serving)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def running_decode(
    serving: ServingConfig, prefill_ports: Sequence[int], **settings: object
) -> AsyncGenerator[DecodeServer]:
    """A decode service that uses prefill services of this machine."""
    targets = [f"127.0.0.1:{port}" for port in prefill_ports]
    config = {**_FREE_PORTS, "num_kv_blocks": 256, "prefill_targets": targets, **settings}
    if not targets:
        config["prefill_unavailable"] = "local"
    server = DecodeServer(DecodeServiceConfig.model_validate(config), serving)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@dataclass(frozen=True)
class Split:
    """A prefill service, a decode service that uses it, and a client of the latter."""

    prefill: PrefillServer
    decode: DecodeServer
    client: AsyncBatonClient

    def metric(self, node: str, name: str, **labels: str) -> float:
        """A sample of a service's metrics; 0 where there is none yet."""
        service = self.prefill if node == "prefill" else self.decode
        return service.metrics.registry.get_sample_value(f"baton_{node}_{name}", labels) or 0.0

    @property
    def num_blocks_in_use(self) -> int:
        """Blocks that requests hold, on both sides."""
        return sum(service.core.ledger.counts().in_use for service in (self.prefill, self.decode))

    async def settled(self, within_s: float = 1.0) -> None:
        """Returns when no request holds a block on either side; fails after `within_s` seconds."""
        async with asyncio.timeout(within_s):
            while self.num_blocks_in_use:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running_split(
    serving: ServingConfig,
    transports: Sequence[str] = ("shm", "grpc"),
    prefill: Settings | None = None,
    decode: Settings | None = None,
) -> AsyncGenerator[Split]:
    """Both services, connected."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            running_prefill(serving, **{"transports": list(transports), **(prefill or {})})
        )
        second = await stack.enter_async_context(
            running_decode(serving, [first.port], **{"transports": list(transports), **(decode or {})})
        )
        client = await stack.enter_async_context(AsyncBatonClient(f"127.0.0.1:{second.port}"))
        yield Split(first, second, client)


@asynccontextmanager
async def running_single(serving: ServingConfig, **settings: object) -> AsyncGenerator[AsyncBatonClient]:
    """One decode service that computes everything itself: the engine that the split system is compared with."""
    alone = serving.model_copy(update={"local_prefill_max_tokens": None})
    async with (
        running_decode(alone, [], **settings) as server,
        AsyncBatonClient(f"127.0.0.1:{server.port}") as client,
    ):
        yield client
