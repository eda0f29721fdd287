"""The benchmarks as commands: real processes, the real model; what they print, and what they leave behind."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import SMALL_STEPS

WAIT_S = 500.0

pytestmark = pytest.mark.usefixtures("smollm2_dir")


@asynccontextmanager
async def benchmark(name: str, *arguments: str, **variables: str) -> AsyncGenerator[Process]:
    """A benchmark's process with few rungs to warm up; killed if it still runs at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"benchmarks.{name}", *arguments),
        env={**os.environ, **SMALL_STEPS, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def output_of(name: str, *arguments: str) -> Any:
    """What a benchmark prints with --json; it ends well, or says so."""
    async with benchmark(name, "--json", *arguments) as process, asyncio.timeout(WAIT_S):
        output, errors = await process.communicate()
        assert output, errors.decode()
        return json.loads(output)


async def until_line(process: Process, part: str) -> None:
    """Reads what the process tells up to a line that has `part` in it."""
    assert process.stderr is not None
    lines = []
    async with asyncio.timeout(WAIT_S):
        async for line in process.stderr:
            lines.append(line.decode())
            if part in lines[-1]:
                return
    raise AssertionError(f"the process ended before it wrote {part!r}: {''.join(lines)}")


def descendants(pid: int) -> set[int]:
    """Ids of the processes that a process has started, and those that they have."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text(errors="replace").rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_services_are_measured_beside_the_engine() -> None:
    found = await output_of("services", "--only", "stream-1", "first-64", "--seconds", "0.1")

    one = found["decoding"]["1"]
    assert one["num_streams"] == 1
    assert one["context"] == 128
    assert one["ratio"] == pytest.approx(one["tokens_a_second"] / one["engine_tokens_a_second"])
    assert one["gap_ms"]["count"] >= 300
    assert 0 < one["gap_ms"]["p50"] <= one["gap_ms"]["p99"] <= one["gap_ms"]["max"]
    assert one["gap_p99_to_median"] == pytest.approx(one["gap_ms"]["p99"] / one["gap_ms"]["p50"])
    assert 0 < one["cores"]["front"] < one["cores"]["compute"]

    first = found["first_token"]["64"]
    assert first["last_chunk_len"] == 64
    assert first["ratio"] == pytest.approx(first["ttft_ms"]["p50"] / first["engine_ms"])
    assert first["bound_ms"] == pytest.approx(1.5 * first["copy_ms"] + 2)
    assert first["ttft_ms"]["p50"] > 0

    rows = {row["name"]: row for row in found["rows"]}
    assert {"split, 1 stream", "split, 1 stream: ÷ engine", "split, hand-over of 64"} <= set(rows)
    assert rows["split, hand-over of 64"]["bound"] == first["bound_ms"]
    assert found["model"]["max_model_len"] == 8192
    assert found["ceilings"]["read_gb_s"] > 0
    assert found["settings"]["BATON_SERVING__MAX_NUM_SEQS"] == SMALL_STEPS["BATON_SERVING__MAX_NUM_SEQS"]
    assert found["interference"] == {}


async def test_growth_draws_its_curves(tmp_path: Path) -> None:
    found = await output_of("growth", "--only", "decode-batch", "--soak", "0.1", "--plots", str(tmp_path))

    points = found["curves"]["decode-batch"]["points"]
    assert [point["size"] for point in points] == [1, 2, 4, 8, 16, 32, 64]
    assert all(point["ratio"] == pytest.approx(point["seconds"] / point["bound_seconds"]) for point in points)
    assert set(found["soak"]["memory"]) == {"prefill", "decode"}
    assert all(memory["mib"][0] > 100 for memory in found["soak"]["memory"].values())
    assert {file.name for file in tmp_path.iterdir()} == {"growth-decode-batch.svg", "growth-memory.svg"}


async def test_a_peer_does_the_same_work_in_turns() -> None:
    arguments = ("--python", sys.executable, "--only", "vllm", "transformers", "--rounds", "2", "--threads", "1")
    found = await output_of("peers", *arguments, "--cases", "decode 1x128", "--dtype", "float32")

    assert set(found["skipped"]) == {"vllm"}
    assert found["versions"]["transformers"].startswith("transformers ")
    rates = found["rates"]["decode 1x128"]
    assert set(rates) == {"baton", "transformers"}
    ratios = [ours / theirs for ours, theirs in zip(rates["baton"], rates["transformers"], strict=True)]
    assert len(ratios) == 2
    assert found["ratios"]["decode 1x128"]["transformers"] == pytest.approx(sum(ratios) / 2)


@pytest.mark.parametrize("moment", ["starting a prefill and a decode service", "stream-8"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_leaves_nothing_behind(tmp_path: Path, moment: str, signum: signal.Signals) -> None:
    arguments = ("--only", "stream-8", "--seconds", "60")
    directory = {f"BATON_{kind}__SHM_DIR": str(tmp_path) for kind in ("PREFILL", "DECODE")}
    async with benchmark("services", *arguments, **directory) as process:
        await until_line(process, moment)
        async with asyncio.timeout(WAIT_S):
            while len(started := descendants(process.pid)) < 3:
                await asyncio.sleep(0.05)
        process.send_signal(signum)
        async with asyncio.timeout(WAIT_S):
            output, errors = await process.communicate()
    assert process.returncode == 130, errors.decode()
    assert output == b""
    assert not [pid for pid in started if is_running(pid)]
    assert list(tmp_path.iterdir()) == [], "no shared memory is left behind"


async def test_a_section_that_there_is_not_is_wrong_usage() -> None:
    async with benchmark("services", "--only", "stream-7") as process:
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"there are stream-1, stream-8" in errors
