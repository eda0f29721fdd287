"""Composition root of the prefill service: config in, a running service out."""

from pathlib import Path

import grpc

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from prefill_service.exports import ExportTable
from prefill_service.scheduler import PrefillScheduler
from prefill_service.servicer import PrefillCore, PrefillServicer
from shared.config.services import PrefillServiceConfig
from shared.config.serving import ServingConfig
from shared.kv.pool import sweep_stale_segments
from shared.kv.transports.base import KvTransport
from shared.kv.transports.grpc import GrpcTransport
from shared.kv.transports.local import LocalTransport, register_pool, unregister_pool
from shared.kv.transports.shm import ShmTransport
from shared.worker.engine import Engine, token_walk
from shared.worker.service import Assembled, EngineService
from shared.worker.step_loop import StepLoop
from shared.worker.walks import WalkChoice

SERVICE_NAME = prefill_pb2.DESCRIPTOR.services_by_name["PrefillService"].full_name
NODE = "prefill"
WALK = "prefill_text"


class PrefillServer(EngineService[PrefillCore]):
    """One prefill service.

    Args:
        config: this service's own settings.
        serving: what both services share.
    """

    def __init__(self, config: PrefillServiceConfig, serving: ServingConfig) -> None:
        shm_dir = Path(config.shm_dir) if "shm" in config.transports else None
        super().__init__(NODE, SERVICE_NAME, config, serving, shm_dir)
        self._config = config
        if shm_dir is not None:
            sweep_stale_segments(shm_dir)

    @property
    def num_live(self) -> int:
        """See `EngineService`."""
        return self.core.scheduler.num_live if self.gate.is_open else 0

    def add_servicer(self, server: grpc.aio.Server) -> None:
        """See `EngineService`."""
        prefill_pb2_grpc.add_PrefillServiceServicer_to_server(PrefillServicer(self.gate), server)

    def walks(self) -> WalkChoice:
        """See `EngineService`."""
        return WalkChoice(token_walk(self.resolved, self.resolved.walk(NODE, WALK)))

    async def assemble(self, engine: Engine, step_loop: StepLoop) -> Assembled[PrefillCore]:
        """See `EngineService`."""
        transports = self._transports(engine)
        exports = ExportTable(engine.pool.epoch)
        scheduler = PrefillScheduler(
            step_loop,
            engine.ledger,
            engine.pool,
            exports,
            transports,
            engine.model.config.max_model_len,
            engine.model.config.vocab_size,
            self.resolved.max_num_seqs(NODE),
            self._config.max_queue_len,
            self.metrics,
        )
        self.metrics.watch_gauge("requests_waiting", "Prompts in the queue.", lambda: scheduler.load().num_waiting)
        self.metrics.watch_gauge("requests_running", "Prompts being computed.", lambda: scheduler.load().num_running)
        self.metrics.watch_gauge("handles_live", "Handles not yet acknowledged.", lambda: len(exports))
        core = PrefillCore(
            identity=engine.identity,
            scheduler=scheduler,
            exports=exports,
            ledger=engine.ledger,
            pool=engine.pool,
            constraints=engine.constraints,
            transports=tuple(transports),
            max_model_len=engine.model.config.max_model_len,
            hidden_size=engine.model.config.hidden_size,
        )
        return Assembled(core, scheduler.on_events)

    def on_drain(self) -> None:
        """Ends the load reports, which tells decode services to send nothing more here."""
        if self.gate.is_open:
            self.core.scheduler.announce_load()

    def _transports(self, engine: Engine) -> dict[str, KvTransport]:
        """The configured transports that this process can serve, best first."""
        transports: dict[str, KvTransport] = {}
        for name in self._config.transports:
            if name == "grpc":
                transports[name] = GrpcTransport(pool=engine.pool)
            elif name == "shm" and engine.pool.segment is not None:
                transports[name] = ShmTransport(Path(self._config.shm_dir), engine.pool)
            elif name == "local":
                transports[name] = LocalTransport(engine.pool)
                register_pool(engine.pool)
                self.closers.callback(unregister_pool, engine.pool)
        for transport in transports.values():
            self.closers.callback(transport.close)
        return transports
