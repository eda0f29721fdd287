"""The gRPC server that both services run in: health, reflection, error mapping, metrics endpoint, graceful stop."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from shared.errors import ConfigError
from shared.rpc.interceptor import ErrorInterceptor
from shared.rpc.options import server_options
from shared.telemetry.metrics import MetricsEndpoint, ServiceMetrics

log = structlog.get_logger()

_PARENT_CHECK_S = 0.5

ALIVE = ""
"""Health name that is SERVING while the process lives; the service's own name tells whether it is ready."""


class GrpcHost:
    """Listens, and answers health checks, from `start` to `stop`.

    Args:
        service_name: full name of the gRPC service, such as "baton.v1.PrefillService".
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        metrics_port: port of the Prometheus endpoint; 0 takes a free one.
        metrics: what the endpoint serves.
    """

    def __init__(self, service_name: str, host: str, port: int, metrics_port: int, metrics: ServiceMetrics) -> None:
        self._service_name = service_name
        self._host = host
        self._wanted_port = port
        self._wanted_metrics_port = metrics_port
        self._metrics = metrics
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._endpoint: MetricsEndpoint | None = None
        self.port = 0

    @property
    def metrics_port(self) -> int:
        """The metrics port listened on."""
        assert self._endpoint is not None
        return self._endpoint.port

    async def start(self, add_servicer: Callable[[grpc.aio.Server], None]) -> None:
        """Listens; alive at once, ready after `set_ready(True)`.

        Raises:
            ConfigError: a port is taken or the address cannot be listened on.
        """
        server = grpc.aio.server(options=server_options(), interceptors=[ErrorInterceptor(self._count)])
        add_servicer(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [self._service_name, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, server)
        # The endpoint first: a gRPC server that was never started cannot give its port back.
        self._endpoint = self._serve_metrics()
        self.port = self._listen(server)
        await self.set_ready(False)
        await self._health.set(ALIVE, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        self._server = server

    async def set_ready(self, is_ready: bool) -> None:
        """Sets the health of the service's own name."""
        statuses = health_pb2.HealthCheckResponse
        await self._health.set(self._service_name, statuses.SERVING if is_ready else statuses.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Waits for running calls, at most `grace_s` seconds, then closes everything."""
        if self._server is not None:
            await self._server.stop(grace_s)
        if self._endpoint is not None:
            await asyncio.to_thread(self._endpoint.close)

    def _count(self, method: str, status: str) -> None:
        self._metrics.requests.labels(method=method, status=status).inc()

    def _listen(self, server: grpc.aio.Server) -> int:
        host = f"[{self._host}]" if ":" in self._host else self._host
        address = f"{host}:{self._wanted_port}"
        try:
            return server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConfigError(
                f"port: cannot listen on {address}; needs a free port and an address of this host"
            ) from error

    def _serve_metrics(self) -> MetricsEndpoint:
        try:
            return MetricsEndpoint(self._metrics.registry, self._host, self._wanted_metrics_port)
        except OSError as error:
            address = f"{self._host}:{self._wanted_metrics_port}"
            raise ConfigError(f"metrics_port: cannot listen on {address} ({error.strerror})") from error


class Service(Protocol):
    """A service as `run_until_signal` drives it."""

    async def start(self) -> None:
        """Listens, loads, warms up; returns when ready."""

    async def wait_failed(self) -> str:
        """Returns the reason when the engine is gone."""

    async def stop(self) -> None:
        """Drains and closes; may be called at any time after `start` was."""

    def hurry(self) -> None:
        """Makes a `stop` that drains stop draining."""


async def run_until_signal(service: Service, parent: int | None = None) -> int:
    """Runs a service until a signal asks for its end, its parent is gone, or its engine fails; returns the exit code.

    Args:
        service: not started yet.
        parent: process whose end is taken for a signal; None for none.
    """
    asked = asyncio.Event()
    with _signals_counted(asked, service):
        watching = asyncio.create_task(_wait_asked(asked, parent))
        serving = asyncio.create_task(_serve(service))
        try:
            await asyncio.wait({watching, serving}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
                return 1
            log.info("draining")
            return 0
        finally:
            watching.cancel()
            serving.cancel()
            await asyncio.wait({serving, watching})
            await service.stop()
            log.info("stopped")


@contextmanager
def _signals_counted(asked: asyncio.Event, service: Service) -> Iterator[None]:
    """The first SIGTERM or SIGINT sets `asked`, later ones hurry the service."""

    def count() -> None:
        if asked.is_set():
            service.hurry()
        asked.set()

    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for signum in signals:
        loop.add_signal_handler(signum, count)
    try:
        yield
    finally:
        for signum in signals:
            loop.remove_signal_handler(signum)


async def _wait_asked(asked: asyncio.Event, parent: int | None) -> None:
    """Returns when a signal has come, or the parent has gone: whoever started this process cannot end it any more."""
    while parent is None or os.getppid() == parent:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PARENT_CHECK_S if parent is not None else None):
                await asked.wait()
                return
    log.warning("parent_gone", parent=parent)


async def _serve(service: Service) -> None:
    await service.start()
    # What start-up made stays: the garbage collector need not look at it again, which would stop all threads for long.
    gc.collect()
    gc.freeze()
    reason = await service.wait_failed()
    log.error("engine_failed", reason=reason)
