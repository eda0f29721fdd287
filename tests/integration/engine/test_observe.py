"""What Prometheus sees of a runner: its steps, ladders and budgets, by walk and rung."""

from pathlib import Path

import pytest

from shared.config.resolve import ResolvedWalk
from shared.engine.runner import Runner, load_model
from shared.engine.step import StepRow
from shared.kv.allocator import BlockAllocator
from shared.kv.pool import KvPool
from shared.ladder import Ladder, trim
from shared.telemetry.metrics import ServiceMetrics
from shared.worker.ledger import BlockLedger
from shared.worker.observe import observe_engine


class Observed:
    """A decode node's runner, and its metrics."""

    def __init__(self, model_dir: Path) -> None:
        model = load_model(model_dir, "float32")
        pool = KvPool.anonymous(model.kv_layout(32), 8, "epoch")
        mixed = ResolvedWalk("decode", "mixed", 12, trim((8, 16, 32, 64), 12))
        self.runner = Runner(model, pool, [mixed, ResolvedWalk("decode", "decode", None, Ladder((1, 2)))])
        self._metrics = ServiceMetrics("decode")
        observe_engine(self._metrics, self.runner, BlockLedger(BlockAllocator(8, pool.generations), 32))

    def metric(self, name: str, **labels: str) -> float | None:
        return self._metrics.registry.get_sample_value(f"baton_decode_{name}", labels)


@pytest.fixture
def observed(tiny_llama_dir: Path) -> Observed:
    return Observed(tiny_llama_dir)


def test_steps_of_a_runner_by_walk_and_rung(observed: Observed) -> None:
    for num_tokens in (5, 9, 20):
        observed.runner.run("mixed", [StepRow([1] * num_tokens, 0, [1], wants_logits=False)])

    assert observed.metric("steps_total", walk="mixed") == 3
    assert observed.metric("step_padding_tokens_total", walk="mixed") == 3 + 7
    assert observed.metric("rung_steps_total", walk="mixed", rung="8") == 1
    assert observed.metric("rung_padding_tokens_total", walk="mixed", rung="16") == 7
    assert observed.metric("rung_tokens_total", walk="mixed", rung="none") == 20
    assert observed.metric("steps_over_top_rung_total", walk="mixed") == 1
    assert observed.metric("steps_total", walk="decode") == 0


def test_ladders_and_budgets(observed: Observed) -> None:
    assert observed.metric("rungs_dropped", walk="mixed") == 2
    assert observed.metric("rungs_dropped", walk="decode") == 0
    assert observed.metric("step_budget_tokens", walk="mixed") == 12
    assert observed.metric("step_budget_tokens", walk="decode") is None


def test_prepared_rungs_grow_as_warm_up_goes_on(observed: Observed) -> None:
    warm_up = observed.runner.warm_up()
    assert observed.metric("rungs_prepared", walk="mixed") == 0

    next(warm_up)
    assert (observed.metric("rungs_prepared", walk="mixed"), observed.metric("rungs_prepared", walk="decode")) == (1, 0)

    list(warm_up)
    assert (observed.metric("rungs_prepared", walk="mixed"), observed.metric("rungs_prepared", walk="decode")) == (2, 2)
