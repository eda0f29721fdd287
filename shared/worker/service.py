"""What a service does from start to stop, whichever node it is: listen, load, warm up, serve, drain, close."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import grpc
import structlog

from shared.config.notice import log_resolution
from shared.config.resolve import resolve
from shared.config.services import ServiceConfig
from shared.config.serving import ServingConfig
from shared.engine.arena import huge_pages
from shared.rpc.gate import ReadyGate
from shared.rpc.host import GrpcHost
from shared.telemetry.metrics import ServiceMetrics
from shared.worker.engine import Engine, EngineLoad, build_engine
from shared.worker.loop_lag import loop_lag_watched
from shared.worker.observe import observe_engine
from shared.worker.step_loop import LoopStopped, StepEvent, StepLoop
from shared.worker.threads import num_threads
from shared.worker.walks import WalkChoice

log = structlog.get_logger()

Core = TypeVar("Core")

_IDLE_CHECK_S = 0.02
_LAST_ANSWERS_S = 0.5
"""What calls get to write their last message once there is no work left, or no time."""


@dataclass(frozen=True)
class Assembled(Generic[Core]):
    """A service's parts: what serves calls, and who is told what each step did."""

    core: Core
    on_events: Callable[[list[StepEvent]], None]


class EngineService(ABC, Generic[Core]):
    """One service; `start`, then `stop`. Made inside a running event loop.

    Args:
        node: "prefill" or "decode".
        service_name: full name of its gRPC service.
        config: its own settings.
        serving: what both services share.
        shm_dir: where the KV pool is shared from; None for a pool of this process alone.
    """

    def __init__(
        self, node: str, service_name: str, config: ServiceConfig, serving: ServingConfig, shm_dir: Path | None
    ) -> None:
        self.metrics = ServiceMetrics(node)
        self.resolved = resolve(serving)
        self.serving = serving
        self.gate: ReadyGate[Core] = ReadyGate(node)
        self.closers = AsyncExitStack()
        self._node = node
        self._settings = config
        self._shm_dir = shm_dir
        self._host = GrpcHost(service_name, config.host, config.port, config.metrics_port, self.metrics)
        self._num_threads = num_threads(config.threads, config.processes_on_host)
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[str] = self._loop.create_future()
        self._on_events: Callable[[list[StepEvent]], None] | None = None
        self._is_hurried = False

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._host.port

    @property
    def metrics_port(self) -> int:
        """The port of the Prometheus endpoint."""
        return self._host.metrics_port

    @property
    def core(self) -> Core:
        """What serves calls, once `start` has returned."""
        return self.gate.value()

    async def start(self) -> None:
        """Listens, loads the model, warms up; ready when it returns.

        Raises:
            ConfigError: a port is taken.
            ModelLoadError: the model cannot be found or served.
        """
        log_resolution(self.resolved)
        await self._host.start(self.add_servicer)
        log.info("listening", port=self.port, metrics_port=self.metrics_port)
        engine = await self._build_engine()
        self.closers.callback(engine.close)
        observe_engine(self.metrics, engine.runner, engine.ledger)
        lag = self.metrics.latency("event_loop_lag_seconds", "How late the event loop wakes up.")
        await self.closers.enter_async_context(loop_lag_watched(lag.observe))
        max_num_seqs = self.resolved.max_num_seqs(self._node)
        step_loop = StepLoop(engine.runner, self.walks(), self._publish, self._num_threads, max_num_seqs)
        assembled = await self.assemble(engine, step_loop)
        self._on_events = assembled.on_events
        step_loop.start()
        self.closers.push_async_callback(asyncio.to_thread, step_loop.stop)
        self.gate.open(assembled.core)
        await self._host.set_ready(True)
        self._log_ready(engine)

    def _log_ready(self, engine: Engine) -> None:
        model, settings = engine.model, self._settings
        log.info(
            "ready",
            model=self.serving.model,
            epoch=engine.pool.epoch,
            kernels=model.ops.name,
            dtype=model.dtype,
            weights=model.ops.weights,
            num_threads=self._num_threads,
            threads_from="config" if settings.threads is not None else "cores and quota",
            processes_on_host=settings.processes_on_host,
            huge_pages=huge_pages(),
        )

    async def wait_failed(self) -> str:
        """Returns the reason when the engine is gone. Cancelling the wait says nothing about the engine."""
        return await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """Takes no new work, waits for what was begun up to the grace time, closes everything.

        The server goes on meanwhile: health says NOT_SERVING, and KV that was handed off can still be fetched.
        """
        self.gate.begin_drain()
        await self._host.set_ready(False)
        self.on_drain()
        if not self._failed.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.drain_grace_s):
                    await self._until_idle()
        await self._host.stop(_LAST_ANSWERS_S)
        await self.closers.aclose()

    def hurry(self) -> None:
        """Makes a `stop` that waits for work stop waiting."""
        self._is_hurried = True

    async def _until_idle(self) -> None:
        while self.num_live and not self._is_hurried:  # noqa: ASYNC110 (work ends in many places)
            await asyncio.sleep(_IDLE_CHECK_S)

    @property
    @abstractmethod
    def num_live(self) -> int:
        """Requests that are not done yet; 0 before the service is ready."""

    @abstractmethod
    def add_servicer(self, server: grpc.aio.Server) -> None:
        """Adds the service to the server."""

    @abstractmethod
    def walks(self) -> WalkChoice:
        """The node's walks."""

    @abstractmethod
    async def assemble(self, engine: Engine, step_loop: StepLoop) -> Assembled[Core]:
        """Wires the node's parts; what must be closed goes into `closers`."""

    def on_drain(self) -> None:
        """Called when draining begins, once health says so."""

    async def _build_engine(self) -> Engine:
        """Builds the engine in a thread; cancelled, it waits for the thread, which stops after the rung it is at."""
        abandoned = threading.Event()
        building = asyncio.create_task(
            asyncio.to_thread(
                build_engine,
                self.serving,
                self.resolved,
                EngineLoad.of_node(self.resolved, self._node),
                self._settings.num_kv_blocks,
                self._shm_dir,
                self._num_threads,
                abandoned.is_set,
            )
        )
        try:
            return await asyncio.shield(building)
        except asyncio.CancelledError:
            abandoned.set()
            await asyncio.wait({building})
            if building.exception() is None:
                building.result().close()
            raise

    def _publish(self, events: list[StepEvent]) -> None:
        """Called on the step loop's thread."""
        self._loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: list[StepEvent]) -> None:
        assert self._on_events is not None
        for event in events:
            if isinstance(event, LoopStopped) and event.error is not None and not self._failed.done():
                self.gate.fail(event.error)
                self._failed.set_result(event.error)
        self._on_events(events)
