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
    stats = {"mixed": WalkStats(), "decode": WalkStats()}
    metrics.watch_steps(lambda: stats)
    assert 'baton_decode_steps_total{walk="mixed"} 0.0' in samples(metrics)
    stats["mixed"] = stats["mixed"].with_step(30, 32, 0.25).with_step(40, None, 0.5)
    assert samples(metrics) >= {
        'baton_decode_steps_total{walk="mixed"} 2.0',
        'baton_decode_step_tokens_total{walk="mixed"} 70.0',
        'baton_decode_step_padding_tokens_total{walk="mixed"} 2.0',
        'baton_decode_steps_over_top_rung_total{walk="mixed"} 1.0',
        'baton_decode_step_seconds_total{walk="mixed"} 0.75',
        'baton_decode_steps_total{walk="decode"} 0.0',
    }


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
