"""Builds what a service computes with. It blocks for seconds: run it off the event loop."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from shared.config.resolve import ResolvedServing, ResolvedWalk
from shared.config.serving import ServingConfig
from shared.constraints.compiler import ConstraintCompiler
from shared.engine.memory import step_bytes, step_bytes_bound
from shared.engine.models.registry import model_fingerprint, resolve_model
from shared.engine.runner import LoadedModel, Runner, load_model
from shared.errors import ConfigError, KvTransferError
from shared.kv.allocator import BlockAllocator
from shared.kv.layout import KvLayout
from shared.kv.pool import KvPool
from shared.planning import StepLimits
from shared.text.tokenizer import Tokenizer
from shared.worker.ledger import BlockLedger
from shared.worker.walks import TokenWalk

log = structlog.get_logger()

PROTOCOL_VERSION = 2


class StartAbandonedError(Exception):
    """Nobody waits for the engine any more."""


@dataclass(frozen=True)
class Identity:
    """What two services must agree on before they exchange KV."""

    protocol_version: int
    model_fingerprint: str
    layout: KvLayout
    serving_digest: str
    serving_json: str


@dataclass(frozen=True)
class EngineLoad:
    """What an engine is prepared for.

    Attributes:
        walks: with the budgets that their steps keep to, warm-up included.
        max_num_rows: most rows of a step.
    """

    walks: tuple[ResolvedWalk, ...]
    max_num_rows: int

    @classmethod
    def of_node(cls, resolved: ResolvedServing, node: str) -> "EngineLoad":
        """What a service runs."""
        return cls(resolved.walks_of(node), resolved.max_num_seqs(node))


@dataclass(frozen=True)
class Engine:
    """A model ready to run steps, and the accounting of its pool."""

    model: LoadedModel
    tokenizer: Tokenizer
    pool: KvPool
    runner: Runner
    ledger: BlockLedger
    identity: Identity
    constraints: ConstraintCompiler

    def close(self) -> None:
        """Frees the pool."""
        self.pool.close()


def build_engine(
    serving: ServingConfig,
    resolved: ResolvedServing,
    load: EngineLoad,
    num_kv_blocks: int,
    shm_dir: Path | None,
    threads: int,
    is_abandoned: Callable[[], bool] = lambda: False,
) -> Engine:
    """Loads the model, makes the pool (in `shm_dir` where given), and warms every rung up.

    Raises:
        ModelLoadError: the model cannot be found or served.
        ConfigError: there is no memory for so many blocks, or for the buffers of such large steps.
        StartAbandonedError: `is_abandoned` turned true on the way.
    """
    torch.set_num_threads(threads)
    model_dir = resolve_model(serving.model)
    model = load_model(
        model_dir,
        serving.dtype,
        serving.max_model_len,
        block_size=serving.kv.block_size,
        kernels=serving.kernels,
        weights=serving.weights,
    )
    layout = model.kv_layout(serving.kv.block_size)
    pool = _make_pool(layout, num_kv_blocks, shm_dir)
    try:
        runner = _make_runner(model, pool, load, serving.kernels)
        _warm_up(runner, is_abandoned)
        allocator = BlockAllocator(num_kv_blocks, pool.generations)
        tokenizer = Tokenizer.from_directory(model_dir)
        return Engine(
            model=model,
            tokenizer=tokenizer,
            pool=pool,
            runner=runner,
            ledger=BlockLedger(allocator, serving.kv.block_size),
            identity=Identity(
                protocol_version=PROTOCOL_VERSION,
                model_fingerprint=model_fingerprint(model_dir),
                layout=layout,
                serving_digest=resolved.digest(),
                serving_json=resolved.canonical_json(),
            ),
            constraints=ConstraintCompiler(tokenizer, model.config.vocab_size),
        )
    except BaseException:
        pool.close()
        raise


def _warm_up(runner: Runner, is_abandoned: Callable[[], bool]) -> None:
    for _ in runner.warm_up():
        if is_abandoned():
            raise StartAbandonedError


def token_walk(resolved: ResolvedServing, walk: ResolvedWalk) -> TokenWalk:
    """A walk that the engine is prepared for, as its steps are planned."""
    limits = StepLimits(
        budget=walk.step_budget,
        threshold=resolved.long_prefill_token_threshold,
        max_partial_prefills=resolved.max_partial_prefills,
        max_num_rows=resolved.max_num_seqs(walk.node),
        ladder=walk.ladder,
    )
    return TokenWalk(walk.name, limits)


def _make_runner(model: LoadedModel, pool: KvPool, load: EngineLoad, kernels: str) -> Runner:
    """The runner, unless its buffers are larger than this machine's memory or what is left of it."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    walks, rows, block_size = load.walks, load.max_num_rows, pool.layout.block_size

    def needed() -> int:
        return step_bytes(model.config, model.dtype, walks, rows, block_size, kernels=kernels).total

    try:
        if step_bytes_bound(model.config, walks, rows, block_size) < installed or needed() < installed:
            return Runner(model, pool, walks, max_num_rows=rows)
    except RuntimeError as error:  # torch's way to say so
        log.debug("buffers_not_allocated", error=str(error))
    rungs = {f"{walk.node}.{walk.name}": walk.ladder.top for walk in walks}
    raise ConfigError(
        f"steps of {rows} rows and these top rungs need buffers of {needed() / 2**30:.1f} GiB, which is "
        f"more memory than there is: {', '.join(f'{name} {top}' for name, top in rungs.items())}; "
        "needs smaller max_num_seqs, or smaller rungs and budgets"
    )


def _make_pool(layout: KvLayout, num_blocks: int, shm_dir: Path | None) -> KvPool:
    epoch = secrets.token_hex(8)
    if shm_dir is not None:
        try:
            return KvPool.shared(layout, num_blocks, epoch, shm_dir)
        except (OSError, KvTransferError) as error:
            log.warning("shm_pool_unavailable", directory=str(shm_dir), error=str(error), instead="grpc")
    try:
        return KvPool.anonymous(layout, num_blocks, epoch)
    except OSError as error:
        num_bytes = num_blocks * layout.block_bytes
        raise ConfigError(
            f"num_kv_blocks: {num_blocks} blocks need {num_bytes / 2**30:.1f} GiB of memory, which is not there "
            f"({error.strerror})"
        ) from error
