"""Prometheus metrics of one service, and the HTTP endpoint that serves them.

Each service object has a registry of its own, so that several can live in one process (tests do that).
"""

from collections.abc import Callable, Iterable, Mapping
from threading import Thread
from types import TracebackType
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shared.engine.stats import WalkStats

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _StepCollector(Collector):
    """Reads the step counts where they are kept, when Prometheus asks."""

    def __init__(self, service: str, read: Callable[[], Mapping[str, WalkStats]]) -> None:
        self._service = service
        self._read = read

    def collect(self) -> Iterable[Metric]:
        fields: tuple[tuple[str, str, Callable[[WalkStats], float]], ...] = (
            ("steps", "Steps run.", lambda stats: stats.num_steps),
            ("step_tokens", "Tokens run in steps, padding not counted.", lambda stats: stats.num_tokens),
            (
                "step_padding_tokens",
                "Padding up to the rung.",
                lambda stats: stats.num_padding_tokens,
            ),
            ("steps_over_top_rung", "Steps larger than the top rung.", lambda stats: stats.num_unpadded_steps),
            ("step_seconds", "Time spent in steps.", lambda stats: stats.seconds),
        )
        walks = self._read()
        for name, text, value in fields:
            family = CounterMetricFamily(f"baton_{self._service}_{name}", text, labels=["walk"])
            for walk, stats in walks.items():
                family.add_metric([walk], value(stats))
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
        """Serves the step counts that `read` returns."""
        self.registry.register(_StepCollector(self._service, read))

    def watch_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Serves the value that `read` returns as the gauge `baton_<service>_<name>`."""
        Gauge(f"baton_{self._service}_{name}", text, registry=self.registry).set_function(read)


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
