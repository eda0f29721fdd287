"""What operators see: health, reflection, metrics, logs."""

import asyncio
import json
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from tests.services import greedy, running_decode, running_split, serving_config


async def health(port: int, service: str) -> str:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        response = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=service), timeout=5
        )
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def read_page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=5) as page:
        return str(page.read().decode())


async def test_health_tells_alive_and_ready_apart(tiny_llama_dir: Path) -> None:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        assert await health(split.decode.port, "") == "SERVING"
        assert await health(split.decode.port, "baton.v1.GenerationService") == "SERVING"
        assert await health(split.prefill.port, "baton.v1.PrefillService") == "SERVING"


async def test_metrics_count_requests_tokens_blocks_and_steps(tiny_llama_dir: Path) -> None:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        await split.client.generate("x" * 100, **greedy(max_tokens=5))
        await split.settled()
        pages = {}
        for node, port in (("prefill", split.prefill.metrics_port), ("decode", split.decode.metrics_port)):
            text = await asyncio.to_thread(read_page, f"http://127.0.0.1:{port}/metrics")
            pages[node] = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    prefill, decode = pages["prefill"], pages["decode"]
    assert prefill["baton_prefill_prompt_tokens_total"] == "100.0"
    assert prefill['baton_prefill_steps_total{walk="prefill_text"}'] == "2.0"
    assert prefill['baton_prefill_step_tokens_total{walk="prefill_text"}'] == "100.0"
    assert prefill['baton_prefill_requests_total{method="Handshake",status="OK"}'] == "1.0"
    assert prefill["baton_prefill_requests_waiting"] == "0.0"
    assert prefill["baton_prefill_kv_blocks_in_use"] == "0.0"
    assert prefill["baton_prefill_kv_blocks_cached"] == "12.0"
    assert decode['baton_decode_requests_total{method="Generate",status="OK"}'] == "1.0"
    assert decode["baton_decode_generated_tokens_total"] == "4.0", "the first one is prefill's"
    assert decode['baton_decode_steps_total{walk="decode"}'] == "4.0"
    assert decode["baton_decode_ttft_seconds_count"] == "1.0"
    num_kv_bytes = 13 * split.prefill.core.pool.layout.block_bytes
    assert float(decode['baton_decode_kv_transferred_bytes_total{transport="shm"}']) == num_kv_bytes


async def test_log_lines_carry_the_request_id(tiny_llama_dir: Path) -> None:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        with capture_logs(processors=[merge_contextvars]) as lines:
            await split.client.generate("hello", **greedy(max_tokens=2, request_id="abc"))
    done = next(line for line in lines if line["event"] == "request_done")
    assert (done["request_id"], done["prompt_tokens"], done["completion_tokens"]) == ("abc", 5, 2)
    assert {line["event"] for line in lines if line.get("request_id") == "abc"} >= {"chunk_landed", "kv_fetched"}


def readme_command(start: str, port: int) -> list[str]:
    """A command of the README, as this checkout can run it: its own tools, and a port in place of the default one."""
    root = Path(__file__).parents[3]
    text = (root / "README.md").read_text()
    command = (
        text[text.index(start) :].split("```")[0].replace("\\\n", " ").replace("localhost:50051", f"127.0.0.1:{port}")
    )
    tool, *arguments = shlex.split(command)
    return [str(Path(sys.executable).with_name(Path(tool).name)), *arguments]


def read_objects(text: str) -> list[dict[str, Any]]:
    """JSON objects that follow one another."""
    decoder, objects = json.JSONDecoder(), []
    while text := text.strip():
        found, end = decoder.raw_decode(text)
        objects.append(found)
        text = text[end:]
    return objects


async def test_the_readmes_buf_curl_streams_by_reflection(tiny_llama_dir: Path) -> None:
    async with running_decode(serving_config(tiny_llama_dir, local_prefill_max_tokens=None), []) as decode:
        process = await asyncio.create_subprocess_exec(
            *readme_command(".venv/bin/buf curl", decode.port), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    messages = read_objects(output.decode())
    kinds = [next(iter(message)) for message in messages]
    assert kinds[0] == "started"
    assert set(kinds[1:-2]) == {"delta"}
    assert kinds[-2:] == ["finished", "usage"]
    assert messages[0]["started"]["promptTokens"] == len("The capital of France is")
