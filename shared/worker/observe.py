"""Metrics that both services read off their engine."""

from collections.abc import Iterable

from shared.engine.runner import Runner
from shared.telemetry.metrics import ServiceMetrics, WalkCounts
from shared.worker.ledger import BlockLedger


def observe_engine(metrics: ServiceMetrics, runner: Runner, ledger: BlockLedger) -> None:
    """Serves step counts by walk, and blocks by state."""

    def read_steps() -> Iterable[WalkCounts]:
        return [
            WalkCounts(
                walk=walk,
                num_steps=stats.num_steps,
                num_tokens=stats.num_tokens,
                num_padding_tokens=stats.num_padding_tokens,
                num_unpadded_steps=stats.num_unpadded_steps,
                seconds=stats.seconds,
            )
            for walk, stats in runner.stats.items()
        ]

    metrics.watch_steps(read_steps)
    metrics.watch_gauge("kv_blocks_free", "Blocks that hold nothing.", lambda: ledger.counts().free)
    metrics.watch_gauge("kv_blocks_cached", "Idle blocks kept for their prefix.", lambda: ledger.counts().cached)
    metrics.watch_gauge("kv_blocks_in_use", "Blocks that requests hold.", lambda: ledger.counts().in_use)
