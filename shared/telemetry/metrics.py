"""Prometheus metrics of one service, and the HTTP endpoint that serves them.

Each service object has a registry of its own, so that several can live in one process (tests do that).
"""

from collections.abc import Callable, Iterable, Mapping
from threading import Thread
from types import TracebackType
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shared.engine.stats import StepTotals, WalkStats

_LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


OVER_TOP_RUNG = "none"
"""The label of steps that ran at no rung, because they were larger than all."""

_TOTALS: tuple[tuple[str, str, Callable[[StepTotals], float]], ...] = (
    ("steps", "Steps run", lambda totals: totals.num_steps),
    ("tokens", "Tokens run in steps, padding not counted", lambda totals: totals.num_tokens),
    ("padding_tokens", "Padding up to the rung", lambda totals: totals.num_padding_tokens),
    ("seconds", "Time spent in steps", lambda totals: totals.seconds),
)


class _StepCollector(Collector):
    """Reads the step counts where they are kept, when Prometheus asks; all of one answer are of the same moment."""

    def __init__(self, service: str, read: Callable[[], Mapping[str, WalkStats]]) -> None:
        self._service = service
        self._read = read

    def collect(self) -> Iterable[Metric]:
        walks = self._read()
        for name, text, value in _TOTALS:
            series = "steps" if name == "steps" else f"step_{name}"
            by_walk = self._family(series, f"{text}.", ["walk"])
            by_rung = self._family(f"rung_{name}", f"{text}, by rung.", ["walk", "rung"])
            for walk, stats in walks.items():
                by_walk.add_metric([walk], value(stats.total))
                for rung, totals in stats.by_rung.items():
                    by_rung.add_metric([walk, str(rung)], value(totals))
                by_rung.add_metric([walk, OVER_TOP_RUNG], value(stats.over_top))
            yield from (by_walk, by_rung)
        misses = self._family("steps_over_top_rung", "Steps larger than the top rung.", ["walk"])
        for walk, stats in walks.items():
            misses.add_metric([walk], stats.over_top.num_steps)
        yield misses

    def _family(self, name: str, text: str, labels: list[str]) -> CounterMetricFamily:
        return CounterMetricFamily(f"baton_{self._service}_{name}", text, labels=labels)


class _WalkGaugeCollector(Collector):
    """Reads a value for each walk, when Prometheus asks."""

    def __init__(self, name: str, text: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._name = name
        self._text = text
        self._read = read

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self._name, self._text, labels=["walk"])
        for walk, value in self._read().items():
            family.add_metric([walk], value)
        yield family


class ServiceMetrics:
    """Counters, gauges and histograms that both services keep."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._service = service
        prefix = f"baton_{service}"
        self.requests = Counter(
            f"{prefix}_requests", "Calls ended, by status.", ["method", "status"], registry=self.registry
        )
        self.prompt_tokens = Counter(f"{prefix}_prompt_tokens", "Prompt tokens accepted.", registry=self.registry)
        self.cached_tokens = Counter(
            f"{prefix}_cached_tokens", "Prompt tokens found in this service's prefix cache.", registry=self.registry
        )
        self.generated_tokens = Counter(f"{prefix}_generated_tokens", "Tokens sampled.", registry=self.registry)
        self.kv_bytes = Counter(
            f"{prefix}_kv_transferred_bytes", "KV moved between services.", ["transport"], registry=self.registry
        )

    def latency(self, name: str, text: str) -> Histogram:
        """A histogram of seconds, `baton_<service>_<name>`."""
        return Histogram(f"baton_{self._service}_{name}", text, buckets=_LATENCY_BUCKETS_S, registry=self.registry)

    def watch_steps(self, read: Callable[[], Mapping[str, WalkStats]]) -> None:
        """Serves the step counts that `read` returns, by walk, and by walk and rung."""
        self.registry.register(_StepCollector(self._service, read))

    def watch_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Serves the value that `read` returns as the gauge `baton_<service>_<name>`."""
        Gauge(f"baton_{self._service}_{name}", text, registry=self.registry).set_function(read)

    def watch_walk_gauge(self, name: str, text: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Serves the values by walk that `read` returns as the gauge `baton_<service>_<name>{walk}`."""
        self.registry.register(_WalkGaugeCollector(f"baton_{self._service}_{name}", text, read))


class MetricsEndpoint:
    """The metrics HTTP server; a context manager."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        started: tuple[WSGIServer, Thread] = start_http_server(port, addr=host, registry=registry)
        self._server, self._thread = started

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._server.server_port

    def __enter__(self) -> "MetricsEndpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening and ends the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
