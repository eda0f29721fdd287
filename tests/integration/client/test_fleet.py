import asyncio
import fcntl
import gc
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli import up
from cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from cli.fleet import Fleet, FleetError, ProcessSpec, service_command
from cli.layout import ConfigFiles, Layout, busy_ports, free_port
from cli.up import supervise

STAND_IN = Path(__file__).with_name("stand_in.py")
READY_S = 60.0
GRACE_S = 30.0


def spec(kind: str, index: int = 0, *arguments: str) -> ProcessSpec:
    port, name = free_port(), f"{kind}-{index}"
    return ProcessSpec(
        name=name,
        kind=kind,
        command=(sys.executable, str(STAND_IN), str(port), f"test.{kind}", *arguments),
        host="127.0.0.1",
        port=port,
        metrics_port=free_port(),
        service=f"test.{kind}",
        environment={"STAND_IN_NAME": name},
    )


class Lines:
    """What was printed, and a way to wait for a line."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._changed = asyncio.Event()

    def line(self, name: str, line: str) -> None:
        self.seen.append(f"{name} | {line}")
        self._changed.set()

    def say(self, message: str) -> None:
        self.line("baton", message)

    async def until(self, matches: Callable[[str], bool]) -> str:
        async with asyncio.timeout(READY_S):
            while True:
                for line in self.seen:
                    if matches(line):
                        return line
                self._changed.clear()
                await self._changed.wait()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_fleet_starts_becomes_ready_and_drains() -> None:
    lines = Lines()
    specs = [spec("prefill"), spec("decode", 0), spec("decode", 1)]
    async with Fleet(specs, lines.line) as fleet:
        await fleet.start()
        await fleet.wait_ready(READY_S)
        assert (fleet.num_running("prefill"), fleet.num_running("decode")) == (1, 2)
        assert await fleet.stop(GRACE_S) == []
        assert (fleet.num_running("prefill"), fleet.num_running("decode")) == (0, 0)
        exits = [await fleet.next_exit() for _ in specs]
    assert {ended.returncode for ended in exits} == {0}
    assert exits[-1].spec.name == "prefill-0", "decode drains while prefill still serves it"
    assert {"prefill-0 | hello from prefill-0", "decode-1 | hello from decode-1"} <= set(lines.seen)
    assert {"prefill-0 | drained", "decode-0 | drained", "decode-1 | drained"} <= set(lines.seen)


async def test_a_process_that_ends_before_it_is_ready_is_named() -> None:
    lines = Lines()
    async with Fleet([spec("prefill"), spec("decode", 0, "--exit-at-once", "3")], lines.line) as fleet:
        await fleet.start()
        with pytest.raises(FleetError, match=r"^decode-0 exited with code 3 before it was ready$"):
            await fleet.wait_ready(READY_S)
        pid = fleet.processes[0].pid
    assert not _is_alive(pid)
    assert "decode-0 | about to fail" in lines.seen


async def test_a_process_that_is_not_ready_in_time_is_named() -> None:
    async with Fleet([spec("decode", 0, "--never-ready")], Lines().line) as fleet:
        await fleet.start()
        with pytest.raises(FleetError, match=r"^not ready within 0.5 s: decode-0$"):
            await fleet.wait_ready(0.5)


async def test_a_process_that_ignores_sigterm_is_killed_with_what_it_started() -> None:
    lines = Lines()
    async with Fleet([spec("decode", 0, "--ignore-term", "--grandchild")], lines.line) as fleet:
        await fleet.start()
        await fleet.wait_ready(READY_S)
        grandchild = int((await lines.until(lambda line: "grandchild" in line)).split()[-1])
        handle = os.pidfd_open(grandchild)
        assert await fleet.stop(0.1) == ["decode-0"]
        assert select.select([handle], [], [], 10)[0], "a process's handle becomes readable when it has ended"
        os.close(handle)
        assert str(await fleet.next_exit()) == "decode-0 was ended by SIGKILL"


async def test_a_program_that_cannot_run_leaves_nothing_behind() -> None:
    first, second = spec("prefill"), spec("decode")
    broken = ProcessSpec(second.name, "decode", ("/does/not/exist",), "127.0.0.1", 1, 2, "test.decode")
    fleet = Fleet([first, broken], Lines().line)
    with pytest.raises(FileNotFoundError):
        async with fleet:
            await fleet.start()
    assert not _is_alive(fleet.processes[0].pid)


async def test_a_busy_port_is_seen() -> None:
    async with Fleet([spec("decode")], Lines().line) as fleet:
        await fleet.start()
        await fleet.wait_ready(READY_S)
        (busy,) = busy_ports(fleet.specs)
        assert busy == f"port {fleet.specs[0].port} of decode-0 is in use on 127.0.0.1"
    assert busy_ports(fleet.specs) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_drains(signum: signal.Signals) -> None:
    lines = Lines()
    fleet = Fleet([spec("prefill"), spec("decode")], lines.line)
    running = asyncio.create_task(supervise(fleet, lines.say, READY_S, GRACE_S))
    ready = await lines.until(lambda line: "ready" in line)
    assert ready == f"baton | ready: {fleet.specs[1].target}"
    started = f"pid {fleet.processes[0].pid}, port {fleet.specs[0].port}"
    assert any(started in line for line in lines.seen)  # the process itself may speak first
    os.kill(os.getpid(), signum)
    assert await running == 0
    assert {"prefill-0 | drained", "decode-0 | drained"} <= set(lines.seen)


async def test_the_second_signal_kills() -> None:
    lines = Lines()
    fleet = Fleet([spec("prefill"), spec("decode", 0, "--ignore-term")], lines.line)
    running = asyncio.create_task(supervise(fleet, lines.say, READY_S, GRACE_S))
    await lines.until(lambda line: "ready" in line)
    os.kill(os.getpid(), signal.SIGINT)
    await lines.until(lambda line: "draining" in line)
    os.kill(os.getpid(), signal.SIGINT)
    assert await running == EXIT_INTERRUPTED
    assert not any(_is_alive(process.pid) for process in fleet.processes)


async def test_a_process_that_outlives_its_grace_is_reported() -> None:
    lines = Lines()
    fleet = Fleet([spec("decode", 0, "--ignore-term")], lines.line)
    running = asyncio.create_task(supervise(fleet, lines.say, READY_S, grace_s=0.1))
    await lines.until(lambda line: "ready" in line)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == EXIT_FAILED
    assert "baton | error: decode-0 did not end within 0.1 s and was killed" in lines.seen


async def test_a_signal_before_it_is_ready_interrupts(caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines()
    fleet = Fleet([spec("decode", 0, "--never-ready")], lines.line)
    running = asyncio.create_task(supervise(fleet, lines.say, READY_S, GRACE_S))
    await lines.until(lambda line: "hello" in line)
    os.kill(os.getpid(), signal.SIGINT)
    assert await running == EXIT_INTERRUPTED
    gc.collect()
    assert not caplog.records, "asyncio logs exceptions that nobody looked at"


async def test_the_rest_goes_on_without_one_replica_but_not_without_a_kind() -> None:
    lines = Lines()
    fleet = Fleet([spec("prefill"), spec("decode", 0), spec("decode", 1)], lines.line)
    running = asyncio.create_task(supervise(fleet, lines.say, READY_S, GRACE_S))
    await lines.until(lambda line: "ready" in line)
    fleet.processes[1].kill()
    await lines.until(lambda line: line == "baton | decode-0 was ended by SIGKILL")
    assert not running.done()
    fleet.processes[2].kill()
    assert await running == EXIT_FAILED
    assert "baton | error: no decode process is left" in lines.seen
    assert "prefill-0 | drained" in lines.seen


async def test_a_failed_start_stops_the_rest() -> None:
    lines = Lines()
    fleet = Fleet([spec("prefill"), spec("decode", 0, "--exit-at-once", "2")], lines.line)
    assert await supervise(fleet, lines.say, READY_S, GRACE_S) == EXIT_FAILED
    assert "baton | error: decode-0 exited with code 2 before it was ready" in lines.seen
    assert not _is_alive(fleet.processes[0].pid)


def _run_up(monkeypatch: pytest.MonkeyPatch, shm_dir: Path, *specs: ProcessSpec) -> int:
    monkeypatch.setattr(up, "lay_out", lambda *_: Layout(specs, GRACE_S, shm_dir))
    return up.run(1, 1, ConfigFiles(), READY_S)


def test_what_a_dead_process_leaves_in_shared_memory_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stale, live, foreign = (tmp_path / name for name in ("baton-kv-0", "baton-kv-1", "other"))
    for path in (stale, live, foreign):
        path.touch()
    with live.open() as owned:
        fcntl.flock(owned, fcntl.LOCK_EX)
        assert _run_up(monkeypatch, tmp_path, spec("prefill", 0, "--exit-at-once", "3")) == EXIT_FAILED
    assert set(tmp_path.iterdir()) == {live, foreign}


async def test_a_fleet_knows_whether_all_ended_well() -> None:
    async with Fleet([spec("prefill"), spec("decode")], Lines().line) as fleet:
        await fleet.start()
        await fleet.wait_ready(READY_S)
        assert not fleet.ended_well
        await fleet.stop(GRACE_S)
        assert fleet.ended_well
    async with Fleet([spec("prefill"), spec("decode", 0, "--exit-at-once", "3")], Lines().line) as fleet:
        await fleet.start()
        await fleet.next_exit()
        await fleet.stop(GRACE_S)
        assert not fleet.ended_well


@pytest.mark.parametrize("name", ["shared", "prefill_service", "torch", "grpc"])
def test_a_service_takes_no_module_from_the_current_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    command = service_command("prefill_service", "--help")
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
