"""The server that both services run in, over the network."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from baton.v1 import generation_pb2 as pb
from baton.v1 import generation_pb2_grpc
from shared.errors import ConfigError, InvalidRequestError
from shared.rpc.host import GrpcHost
from shared.telemetry.metrics import ServiceMetrics

SERVICE = "baton.v1.GenerationService"
WAIT_S = 10.0
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
Context = grpc.aio.ServicerContext[Any, Any]


class Tokenizing:
    """Tokenize alone: one token a character; it waits while `holds` is set."""

    def __init__(self) -> None:
        self.holds = False
        self.is_called = asyncio.Event()
        self.may_go_on = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        handler = grpc.unary_unary_rpc_method_handler(
            self._tokenize, pb.TokenizeRequest.FromString, pb.TokenizeResponse.SerializeToString
        )
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Tokenize": handler})])

    async def _tokenize(self, request: pb.TokenizeRequest, _context: Context) -> pb.TokenizeResponse:
        self.is_called.set()
        if self.holds:
            await self.may_go_on.wait()
        if not request.text:
            raise InvalidRequestError("empty")
        return pb.TokenizeResponse(token_ids=range(len(request.text)))


def host_on(port: int = 0, metrics_port: int = 0) -> GrpcHost:
    return GrpcHost(SERVICE, "127.0.0.1", port, metrics_port, ServiceMetrics("decode"))


@asynccontextmanager
async def started(servicer: Tokenizing | None = None) -> AsyncIterator[tuple[GrpcHost, grpc.aio.Channel]]:
    host = host_on()
    await host.start((servicer or Tokenizing()).add_to)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{host.port}") as channel:
            yield host, channel
    finally:
        await host.stop(0)


async def health_of(channel: grpc.aio.Channel, service: str) -> int:
    response = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return int(response.status)


def read_metrics(host: GrpcHost) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{host.metrics_port}/metrics", timeout=WAIT_S) as response:
        return str(response.read().decode())


async def test_alive_at_once_and_ready_when_told() -> None:
    async with started() as (host, channel):
        assert await health_of(channel, "") == SERVING
        assert await health_of(channel, SERVICE) == NOT_SERVING
        await host.set_ready(True)
        assert await health_of(channel, SERVICE) == SERVING
        await host.set_ready(False)
        assert await health_of(channel, SERVICE) == NOT_SERVING
        assert await health_of(channel, "") == SERVING, "a service that drains is alive"


async def test_health_of_another_service_is_unknown() -> None:
    async with started() as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_of(channel, "baton.v1.PrefillService")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_tells_the_service_and_its_methods() -> None:
    async with started() as (_, channel):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        listed, found = [response async for response in stub.ServerReflectionInfo(iter(requests))]
        names = {service.name for service in listed.list_services_response.service}
        assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        assert any(b"StreamGenerateRequest" in file for file in found.file_descriptor_response.file_descriptor_proto)


async def test_calls_are_counted_by_status_and_served_as_metrics() -> None:
    async with started() as (host, channel):
        stub: generation_pb2_grpc.GenerationServiceAsyncStub = generation_pb2_grpc.GenerationServiceStub(channel)
        assert (await stub.Tokenize(pb.TokenizeRequest(text="abc"))).token_ids == [0, 1, 2]
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Tokenize(pb.TokenizeRequest())
        await health_of(channel, "")
        text = await asyncio.to_thread(read_metrics, host)
    assert 'baton_decode_requests_total{method="Tokenize",status="OK"} 1.0\n' in text
    assert 'baton_decode_requests_total{method="Tokenize",status="INVALID_ARGUMENT"} 1.0\n' in text
    assert text.count("baton_decode_requests_total{") == 2, "health checks are not counted"


async def test_stop_waits_for_a_running_call() -> None:
    servicer = Tokenizing()
    servicer.holds = True
    host = host_on()
    await host.start(servicer.add_to)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{host.port}") as channel:
        stub: generation_pb2_grpc.GenerationServiceAsyncStub = generation_pb2_grpc.GenerationServiceStub(channel)
        running = asyncio.ensure_future(stub.Tokenize(pb.TokenizeRequest(text="abc")))
        await asyncio.wait_for(servicer.is_called.wait(), WAIT_S)
        stopping = asyncio.create_task(host.stop(WAIT_S))
        await asyncio.sleep(0)
        servicer.may_go_on.set()
        assert (await running).token_ids == [0, 1, 2]
        await asyncio.wait_for(stopping, WAIT_S)


async def test_stop_ends_a_call_that_outlasts_the_grace_time() -> None:
    servicer = Tokenizing()
    servicer.holds = True
    async with started(servicer) as (host, channel):
        stub: generation_pb2_grpc.GenerationServiceAsyncStub = generation_pb2_grpc.GenerationServiceStub(channel)
        running = asyncio.ensure_future(stub.Tokenize(pb.TokenizeRequest(text="abc")))
        await asyncio.wait_for(servicer.is_called.wait(), WAIT_S)
        await asyncio.wait_for(host.stop(0.01), WAIT_S)
        with pytest.raises(grpc.aio.AioRpcError):
            await running


async def test_stop_closes_both_ports() -> None:
    async with started() as (host, _):
        port, metrics_port = host.port, host.metrics_port
        assert (port > 0, metrics_port > 0, port != metrics_port) == (True, True, True)
    with pytest.raises(urllib.error.URLError, match="refused"):
        await asyncio.to_thread(read_metrics, host)
    again = host_on(port, metrics_port)
    await again.start(Tokenizing().add_to)
    assert (again.port, again.metrics_port) == (port, metrics_port)
    await again.stop(0)


async def test_a_taken_port_is_an_error_of_the_config_and_leaves_nothing_open() -> None:
    async with started() as (host, _):
        other = host_on(port=host.port)
        with pytest.raises(ConfigError, match=f"port: cannot listen on 127.0.0.1:{host.port}; needs a free port"):
            await other.start(Tokenizing().add_to)
        metrics_port = other.metrics_port
        await other.stop(0)
        again = host_on(metrics_port=metrics_port)
        await again.start(Tokenizing().add_to)
        await again.stop(0)


async def test_a_taken_metrics_port_is_an_error_of_the_config_before_anything_listens() -> None:
    async with started() as (host, _):
        other = host_on(metrics_port=host.metrics_port)
        with pytest.raises(ConfigError, match=rf"metrics_port: cannot listen on 127.0.0.1:{host.metrics_port} \(.*use"):
            await other.start(Tokenizing().add_to)
        assert other.port == 0
        await other.stop(0)


async def test_a_host_that_never_started_stops() -> None:
    await host_on().stop(0)
