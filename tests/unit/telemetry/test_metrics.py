import urllib.error
import urllib.request

import pytest
from prometheus_client import generate_latest

from shared.engine.stats import WalkStats
from shared.telemetry.metrics import MetricsEndpoint, ServiceMetrics


def samples(metrics: ServiceMetrics) -> set[str]:
    """The lines of the exposition text that are samples."""
    return {line for line in generate_latest(metrics.registry).decode().splitlines() if not line.startswith("#")}


def test_counters_by_label() -> None:
    metrics = ServiceMetrics("decode")
    metrics.requests.labels(method="Generate", status="OK").inc()
    metrics.requests.labels(method="Generate", status="OK").inc()
    metrics.requests.labels(method="StreamGenerate", status="CANCELLED").inc()
    metrics.kv_bytes.labels(transport="shm").inc(1024)
    assert samples(metrics) >= {
        'baton_decode_requests_total{method="Generate",status="OK"} 2.0',
        'baton_decode_requests_total{method="StreamGenerate",status="CANCELLED"} 1.0',
        'baton_decode_kv_transferred_bytes_total{transport="shm"} 1024.0',
    }


def test_token_counters_stand_at_zero_from_the_start() -> None:
    metrics = ServiceMetrics("prefill")
    assert samples(metrics) >= {
        "baton_prefill_prompt_tokens_total 0.0",
        "baton_prefill_cached_tokens_total 0.0",
        "baton_prefill_generated_tokens_total 0.0",
    }
    metrics.prompt_tokens.inc(7)
    assert "baton_prefill_prompt_tokens_total 7.0" in samples(metrics)


def test_time_to_first_token_in_buckets() -> None:
    metrics = ServiceMetrics("decode")
    ttft = metrics.latency("ttft_seconds", "Arrival to first token.")
    for seconds in (0.004, 0.3, 61):
        ttft.observe(seconds)
    assert samples(metrics) >= {
        'baton_decode_ttft_seconds_bucket{le="0.005"} 1.0',
        'baton_decode_ttft_seconds_bucket{le="0.25"} 1.0',
        'baton_decode_ttft_seconds_bucket{le="0.5"} 2.0',
        'baton_decode_ttft_seconds_bucket{le="60.0"} 2.0',
        'baton_decode_ttft_seconds_bucket{le="+Inf"} 3.0',
        "baton_decode_ttft_seconds_count 3.0",
        "baton_decode_ttft_seconds_sum 61.304",
    }


def test_steps_are_read_when_they_are_asked_for() -> None:
    metrics = ServiceMetrics("decode")
    stats = {"mixed": WalkStats.of_rungs([32, 64]), "decode": WalkStats()}
    metrics.watch_steps(lambda: stats)
    assert samples(metrics) >= {
        'baton_decode_steps_total{walk="mixed"} 0.0',
        'baton_decode_rung_steps_total{rung="64",walk="mixed"} 0.0',
        'baton_decode_rung_steps_total{rung="none",walk="mixed"} 0.0',
    }
    stats["mixed"] = stats["mixed"].with_step(30, 32, 0.25).with_step(100, None, 0.5).with_step(32, 32, 0.125)
    assert samples(metrics) >= {
        'baton_decode_steps_total{walk="mixed"} 3.0',
        'baton_decode_step_tokens_total{walk="mixed"} 162.0',
        'baton_decode_step_padding_tokens_total{walk="mixed"} 2.0',
        'baton_decode_step_seconds_total{walk="mixed"} 0.875',
        'baton_decode_steps_over_top_rung_total{walk="mixed"} 1.0',
        'baton_decode_steps_total{walk="decode"} 0.0',
        'baton_decode_rung_steps_total{rung="32",walk="mixed"} 2.0',
        'baton_decode_rung_tokens_total{rung="32",walk="mixed"} 62.0',
        'baton_decode_rung_padding_tokens_total{rung="32",walk="mixed"} 2.0',
        'baton_decode_rung_seconds_total{rung="32",walk="mixed"} 0.375',
        'baton_decode_rung_steps_total{rung="64",walk="mixed"} 0.0',
        'baton_decode_rung_steps_total{rung="none",walk="mixed"} 1.0',
        'baton_decode_rung_tokens_total{rung="none",walk="mixed"} 100.0',
    }


def test_gauges_by_walk_are_there_for_walks_that_have_the_value() -> None:
    metrics = ServiceMetrics("decode")
    budgets: dict[str, float] = {"mixed": 512}
    metrics.watch_walk_gauge("step_budget_tokens", "Most tokens in a step.", lambda: budgets)
    assert 'baton_decode_step_budget_tokens{walk="mixed"} 512.0' in samples(metrics)
    assert not any('walk="decode"' in line for line in samples(metrics))


def test_gauges_are_read_when_they_are_asked_for() -> None:
    metrics = ServiceMetrics("prefill")
    value = 3
    metrics.watch_gauge("handles_live", "Handles not yet acknowledged.", lambda: value)
    assert "baton_prefill_handles_live 3.0" in samples(metrics)
    value = 5
    assert "baton_prefill_handles_live 5.0" in samples(metrics)


def test_two_services_of_one_process_are_counted_apart() -> None:
    first, second = ServiceMetrics("decode"), ServiceMetrics("decode")
    first.prompt_tokens.inc()
    assert "baton_decode_prompt_tokens_total 0.0" in samples(second)


def test_the_endpoint_serves_and_closes() -> None:
    metrics = ServiceMetrics("decode")
    metrics.prompt_tokens.inc(2)
    with MetricsEndpoint(metrics.registry, "127.0.0.1", 0) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            assert b"baton_decode_prompt_tokens_total 2.0\n" in response.read()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(url, timeout=10)


def test_a_taken_port_is_an_error() -> None:
    metrics = ServiceMetrics("decode")
    with (
        MetricsEndpoint(metrics.registry, "127.0.0.1", 0) as endpoint,
        pytest.raises(OSError, match="in use"),
    ):
        MetricsEndpoint(metrics.registry, "127.0.0.1", endpoint.port)
