"""Composition root of the decode service: config in, a running service out."""

from pathlib import Path

import grpc

from baton.v1 import generation_pb2, generation_pb2_grpc
from decode_service.admission import Admission
from decode_service.generator import Generator
from decode_service.kv_links import KvLinks
from decode_service.remote_prefill import RemotePrefill
from decode_service.replicas import ReplicaSet
from decode_service.served_model import describe_model
from decode_service.servicer import DecodeCore, GenerationServicer
from shared.config.services import DecodeServiceConfig
from shared.config.serving import ServingConfig
from shared.kv.transports.copier import Copier
from shared.worker.engine import Engine, token_walk
from shared.worker.service import Assembled, EngineService
from shared.worker.step_loop import StepLoop
from shared.worker.walks import WalkChoice

SERVICE_NAME = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name
NODE = "decode"


class DecodeServer(EngineService[DecodeCore]):
    """One decode service.

    Args:
        config: this service's own settings.
        serving: what both services share.
    """

    def __init__(self, config: DecodeServiceConfig, serving: ServingConfig) -> None:
        super().__init__(NODE, SERVICE_NAME, config, serving, shm_dir=None)
        self._config = config

    @property
    def num_live(self) -> int:
        """See `EngineService`."""
        return self.core.generator.num_live if self.gate.is_open else 0

    def add_servicer(self, server: grpc.aio.Server) -> None:
        """See `EngineService`."""
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(GenerationServicer(self.gate), server)

    def walks(self) -> WalkChoice:
        """See `EngineService`."""
        mixed = token_walk(self.resolved, self.resolved.walk(NODE, "mixed"))
        has_own_rungs = self.resolved.has_walk(NODE, "prefill_text")
        prefill = token_walk(self.resolved, self.resolved.walk(NODE, "prefill_text")) if has_own_rungs else mixed
        return WalkChoice(prefill, mixed, decode="decode")

    async def assemble(self, engine: Engine, step_loop: StepLoop) -> Assembled[DecodeCore]:
        """Meets the prefill replicas, as far as they are there, before the service is ready.

        Those that are still loading are waited for: the first requests should not all go to whoever was first.
        """
        config = self._config
        admission = Admission(engine.ledger, self.resolved.max_num_seqs(NODE), config.max_queue_len)
        links = KvLinks(config.transports, Path(config.shm_dir), engine.identity.layout, config.fetch_timeout_s)
        self.closers.callback(links.close)
        replicas = ReplicaSet(config.prefill_targets, engine.identity, links)
        await self.closers.enter_async_context(replicas)
        await replicas.settle()
        await replicas.wait_loaded()
        copier = Copier("parting")
        self.closers.callback(copier.close)
        generator = Generator(
            config,
            engine,
            step_loop,
            admission,
            RemotePrefill(config, replicas, links, self.metrics),
            copier,
            self.resolved.local_prefill_max_tokens,
            self.metrics,
        )
        self.metrics.watch_gauge("requests_waiting", "Requests in the queue.", lambda: admission.num_waiting)
        self.metrics.watch_gauge("requests_admitted", "Completions that hold blocks.", lambda: admission.num_admitted)
        self.metrics.watch_gauge("prefill_replicas_ready", "Prefill replicas in use.", lambda: replicas.num_ready)
        max_num_seqs = self.resolved.max_num_seqs(NODE)
        model = describe_model(self.serving.model, engine, config.default_max_tokens, max_num_seqs)
        core = DecodeCore(model, generator, replicas, links, engine.ledger)
        return Assembled(core, generator.on_events)
