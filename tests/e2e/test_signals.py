"""A service process and the signals it gets: what it leaves behind, and with which exit code."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton_client import AsyncBatonClient, BatonClientError, Delta, Started
from tests.e2e.processes import SMALL_STEPS, deployed

WAIT_S = 120.0
FAST_WARM_UP = {
    **SMALL_STEPS,
    "BATON_SERVING__MAX_BATCH_TOKENS": "{prefill: 64, decode: 64}",
    "BATON_SERVING__PREFILL_TOKEN_BUCKETS": "{prefill: {prefill_text: [16, 64]}, decode: {mixed: [64]}}",
}


@asynccontextmanager
async def service(
    node: str, shm_dir: Path, arguments: Sequence[str] = (), **variables: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A service process on free ports; killed if it still runs at the end."""
    settings = {
        f"BATON_{node.upper()}__{key}": value
        for key, value in {"PORT": "0", "METRICS_PORT": "0", "LOG__FORMAT": "json", "SHM_DIR": str(shm_dir)}.items()
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"{node}_service", *arguments),
        env={**os.environ, **FAST_WARM_UP, **settings, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def until_line(process: asyncio.subprocess.Process, part: str) -> str:
    """Reads the process's output up to a line that has `part` in it."""
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        async for line in process.stdout:
            if part in line.decode():
                return line.decode()
    raise AssertionError(f"the process ended before it wrote {part!r}")


async def exit_code(process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(WAIT_S):
        await process.communicate()
    assert process.returncode is not None
    return process.returncode


@pytest.mark.usefixtures("smollm2_dir")
@pytest.mark.parametrize("moment", ["listening", "model_loaded", '"ready"'])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_well_at_any_moment(tmp_path: Path, moment: str, signum: signal.Signals) -> None:
    async with service("prefill", tmp_path) as process:
        await until_line(process, moment)
        process.send_signal(signum)
        assert await exit_code(process) == 0
    assert list(tmp_path.iterdir()) == [], "no shared memory is left behind"


@pytest.mark.usefixtures("smollm2_dir")
async def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    async with service("prefill", tmp_path) as process:
        await until_line(process, '"ready"')
        process.kill()
        assert await exit_code(process) == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    async with service("prefill", tmp_path) as process:
        await until_line(process, '"ready"')
        assert left.name not in {path.name for path in tmp_path.iterdir()}
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "part"),
    [
        ({"BATON_PREFILL__PORT": "no-number"}, "BATON_PREFILL__PORT: port: found"),
        ({"BATON_PREFILL__COLOUR": "red"}, "colour"),
        ({"BATON_SERVING__MODEL": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"BATON_PREFILL__HOST": "203.0.113.1"}, "203.0.113.1"),
        ({"BATON_PREFILL__NUM_KV_BLOCKS": "100000000"}, "num_kv_blocks: 100000000 blocks need"),
        ({"BATON_SERVING__MAX_MODEL_LEN": "8193"}, "max_model_len is 8193"),
    ],
)
async def test_a_wrong_config_ends_it_with_code_2(tmp_path: Path, variables: dict[str, str], part: str) -> None:
    async with service("prefill", tmp_path, **variables) as process:
        async with asyncio.timeout(WAIT_S):
            output, _ = await process.communicate()
        assert process.returncode == 2
        assert part in output.decode()
        assert "Traceback" not in output.decode()


@pytest.mark.usefixtures("smollm2_dir")
async def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    async with service("decode", tmp_path, arguments=["--parent", "1"]) as process:
        async with asyncio.timeout(WAIT_S):
            output, _ = await process.communicate()
        assert process.returncode == 0
        assert "parent_gone" in output.decode()


@pytest.mark.usefixtures("smollm2_dir")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_requests_finish(tmp_path: Path, signum: signal.Signals) -> None:
    """They once ended half a second after the signal: cancelling the wait for a failure counted as one."""
    alone = {"BATON_SERVING__LOCAL_PREFILL_MAX_TOKENS": "null"}
    async with service("decode", tmp_path, **alone) as process:
        port = json.loads(await until_line(process, "listening"))["port"]
        await until_line(process, '"ready"')
        async with AsyncBatonClient(f"127.0.0.1:{port}") as client:
            stream = client.stream("Once upon a time", max_tokens=60, ignore_eos=True, token_ids=True)
            assert isinstance(await anext(stream), Started)
            process.send_signal(signum)
            deltas = [event async for event in stream if isinstance(event, Delta)]
            assert sum(len(delta.token_ids) for delta in deltas) == 60
        assert await exit_code(process) == 0


@pytest.mark.usefixtures("smollm2_dir")
async def test_a_prompt_that_is_being_computed_is_handed_over_before_its_replica_ends() -> None:
    async with deployed(1, 1) as deployment:
        asked = asyncio.create_task(deployment.client.generate("x y " * 1000, max_tokens=3, ignore_eos=True))
        async with asyncio.timeout(WAIT_S):
            while not deployment.events("prefill", "chunk_landed"):
                await asyncio.sleep(0.01)
        prefill = next(process for process in deployment.fleet.processes if process.spec.kind == "prefill")
        os.kill(prefill.pid, signal.SIGTERM)
        completion = await asyncio.wait_for(asked, WAIT_S)
        assert completion.usage.completion_tokens == 3
        attempts = deployment.events("decode", "prefill_attempt_failed")
        assert attempts == []


@pytest.mark.usefixtures("smollm2_dir")
async def test_a_second_signal_does_not_wait_for_requests(tmp_path: Path) -> None:
    alone = {"BATON_SERVING__LOCAL_PREFILL_MAX_TOKENS": "null"}
    async with service("decode", tmp_path, **alone) as process:
        port = json.loads(await until_line(process, "listening"))["port"]
        await until_line(process, '"ready"')
        async with AsyncBatonClient(f"127.0.0.1:{port}") as client:
            stream = client.stream("Once upon a time", max_tokens=2000, ignore_eos=True)
            assert isinstance(await anext(stream), Started)
            process.send_signal(signal.SIGTERM)
            for _ in range(3):
                assert isinstance(await anext(stream), Delta), "the running request goes on"
            process.send_signal(signal.SIGTERM)
            with pytest.raises(BatonClientError):
                async for _ in stream:
                    pass
        assert await exit_code(process) == 0


@pytest.mark.usefixtures("smollm2_dir")
async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    async with service("decode", tmp_path) as first:
        port = str(int((await until_line(first, "listening")).split('"port": ')[1].split(",")[0]))
        async with service("decode", tmp_path, BATON_DECODE__PORT=port) as second:
            async with asyncio.timeout(WAIT_S):
                output, _ = await second.communicate()
            assert second.returncode == 2
            assert f"cannot listen on 127.0.0.1:{port}" in output.decode()
