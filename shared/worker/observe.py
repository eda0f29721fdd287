"""Metrics that both services read off their engine."""

from shared.engine.runner import Runner
from shared.telemetry.metrics import ServiceMetrics
from shared.worker.ledger import BlockLedger


def observe_engine(metrics: ServiceMetrics, runner: Runner, ledger: BlockLedger) -> None:
    """Serves step counts by walk, and blocks by state."""
    metrics.watch_steps(lambda: runner.stats)
    metrics.watch_gauge("kv_blocks_free", "Blocks that hold nothing.", lambda: ledger.counts().free)
    metrics.watch_gauge("kv_blocks_cached", "Idle blocks kept for their prefix.", lambda: ledger.counts().cached)
    metrics.watch_gauge("kv_blocks_in_use", "Blocks that requests hold.", lambda: ledger.counts().in_use)
