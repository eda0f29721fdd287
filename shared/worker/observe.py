"""Metrics that both services read off their engine."""

from shared.engine.runner import Runner
from shared.telemetry.metrics import ServiceMetrics
from shared.worker.ledger import BlockLedger


def observe_engine(metrics: ServiceMetrics, runner: Runner, ledger: BlockLedger) -> None:
    """Serves step counts, ladders and budgets by walk, and blocks by state."""
    metrics.watch_steps(lambda: runner.stats)
    _observe_ladders(metrics, runner)
    metrics.watch_gauge("kv_blocks_free", "Blocks that hold nothing.", lambda: ledger.counts().free)
    metrics.watch_gauge("kv_blocks_cached", "Idle blocks kept for their prefix.", lambda: ledger.counts().cached)
    metrics.watch_gauge("kv_blocks_in_use", "Blocks that requests hold.", lambda: ledger.counts().in_use)


def _observe_ladders(metrics: ServiceMetrics, runner: Runner) -> None:
    walks = runner.walks.values()
    dropped = {walk.name: float(len(walk.ladder.dropped)) for walk in walks}
    budgets = {walk.name: float(walk.step_budget) for walk in walks if walk.step_budget is not None}
    metrics.watch_walk_gauge("rungs_prepared", "Rungs that warm-up has prepared.", lambda: runner.num_prepared_rungs)
    metrics.watch_walk_gauge("rungs_dropped", "Rungs that no step within the budget needs.", lambda: dropped)
    metrics.watch_walk_gauge("step_budget_tokens", "Most tokens in a step; absent: no limit.", lambda: budgets)
