"""Batches without services: an engine in this process, and requests that are there from the start."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

import structlog

from baton.v1 import generation_pb2
from decode_service.batch import Batch, OfflineFailure, OfflineResult, Outcome
from decode_service.request import GenerationRequest
from decode_service.served_model import describe_model
from decode_service.translate import ServedModel, request_from_proto
from shared.config.resolve import ResolvedServing, resolve
from shared.config.serving import ServingConfig
from shared.telemetry.logs import configure_logging
from shared.worker.engine import Engine, EngineLoad, build_engine
from shared.worker.threads import num_threads

__all__ = ["OfflineEngine", "OfflineFailure", "OfflineResult", "Outcome", "generate_batch", "offline_load"]

DEFAULT_NUM_KV_BLOCKS = 512
DEFAULT_MAX_TOKENS = 512


class OfflineEngine:
    """An engine for batches; a context manager. Not for use by two threads at once.

    Args:
        engine: prepared for `offline_load`; closed with this.
        resolved: what it was prepared from.
        model: what requests are checked against.
    """

    def __init__(self, engine: Engine, resolved: ResolvedServing, model: ServedModel) -> None:
        self.engine = engine
        self.model = model
        self.resolved = resolved

    @classmethod
    def open(
        cls,
        serving: ServingConfig,
        *,
        num_kv_blocks: int = DEFAULT_NUM_KV_BLOCKS,
        threads: int | None = None,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> "OfflineEngine":
        """Loads the model and warms up, which takes seconds. Where nobody has set up logging, warnings are shown.

        Args:
            serving: the services' config; budgets and rungs of prompts are those of the prefill node.
            num_kv_blocks: blocks in the KV pool, of which one is scratch.
            threads: torch threads; None: all cores this process may use.
            default_max_tokens: tokens to generate where a request does not say.

        Raises:
            ModelLoadError: the model cannot be found or served.
            ConfigError: there is no memory for so many blocks.
        """
        if not structlog.is_configured():
            configure_logging("offline", "warning", "console")
        resolved = resolve(serving)
        load = offline_load(resolved)
        engine = build_engine(serving, resolved, load, num_kv_blocks, None, num_threads(threads, processes_on_host=1))
        return cls(
            engine, resolved, describe_model(serving.model, engine, default_max_tokens, resolved.max_num_seqs("decode"))
        )

    def close(self) -> None:
        """Frees the pool."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def request(self, message: generation_pb2.GenerateRequest) -> GenerationRequest:
        """Validates a request and tokenizes its prompt.

        Raises:
            InvalidRequestError: a field is wrong.
        """
        return request_from_proto(message, self.model)

    @property
    def num_tokens(self) -> tuple[int, int]:
        """Tokens computed so far: of prompts, and of completions, whose last token needs no computing."""
        stats = self.engine.runner.stats
        return stats["prefill_text"].total.num_tokens, stats["decode"].total.num_tokens

    def run(
        self,
        requests: Iterable[GenerationRequest],
        *,
        keep_logits: bool = False,
        on_step: Callable[[], None] | None = None,
    ) -> Iterator[Outcome]:
        """Completes requests, taken from the iterator as there is room; yields each as it is done, in that order.

        Leaving the iterator early frees what its requests hold. Requests may have equal ids.

        Args:
            requests: validated.
            keep_logits: whether results hold their prompts' final logits.
            on_step: called after each step.
        """
        batch = Batch(self.engine, self.resolved, keep_logits=keep_logits, on_step=on_step)
        try:
            yield from batch.run(requests)
        finally:
            batch.close()


def generate_batch(
    engine: OfflineEngine, requests: Sequence[GenerationRequest], *, keep_logits: bool = False
) -> list[Outcome]:
    """Completes requests; the outcomes are in the requests' order."""
    return sorted(engine.run(requests, keep_logits=keep_logits), key=lambda outcome: outcome.index)


def offline_load(resolved: ResolvedServing) -> EngineLoad:
    """What an engine must be prepared for to run batches."""
    walks = (resolved.offline_walk("prefill", "prefill_text"), resolved.walk("decode", "decode"))
    return EngineLoad(walks, max(resolved.max_num_seqs("prefill"), resolved.max_num_seqs("decode")))
