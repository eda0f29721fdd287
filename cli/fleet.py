"""A group of service processes on this machine, from start to stop.

1. `start` spawns them, each in a session of its own, so that a terminal's Ctrl-C reaches the parent alone.
2. Their output comes line by line to `on_line`.
3. `wait_ready` asks each one's health service; a process that ends before is a `FleetError`.
4. `next_exit` tells which process has ended, and how.
5. `stop` lets the processes drain, kind by kind; `kill` does not.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc

from baton_client import BatonClientError
from baton_client.health import CHECK_TIMEOUT_S, POLL_INTERVAL_S, check_async
from baton_client.targets import channel_options

OnLine = Callable[[str, str], None]
"""Called with a process's name and a line of its output."""

_LONGEST_LINE = 1 << 16
_LAST_OUTPUT_S = 1.0
"""How long a grandchild that keeps a dead process's output open is listened to."""


class FleetError(Exception):
    """The processes did not become ready."""


@dataclass(frozen=True)
class ProcessSpec:
    """A service process to start.

    Attributes:
        name: such as "prefill-0".
        kind: "prefill" or "decode"; processes of one kind stand in for each other.
        command: program and arguments.
        environment: variables to set; others are inherited.
        host: address at which this machine reaches it.
        port: its gRPC port.
        metrics_port: its Prometheus port.
        service: name by which its health service tells whether it is ready.
    """

    name: str
    kind: str
    command: tuple[str, ...]
    host: str
    port: int
    metrics_port: int
    service: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """host:port of its gRPC service."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class ProcessExit:
    """A process has ended; `returncode` is negative for a signal, as in `subprocess`."""

    spec: ProcessSpec
    returncode: int

    def __str__(self) -> str:
        if self.returncode < 0:
            return f"{self.spec.name} was ended by {signal.Signals(-self.returncode).name}"
        return f"{self.spec.name} exited with code {self.returncode}"


class FleetProcess:
    """One running process, and the tasks that read its output and wait for its end."""

    def __init__(self, spec: ProcessSpec, process: asyncio.subprocess.Process, on_line: OnLine) -> None:
        self.spec = spec
        self._process = process
        self._output = asyncio.create_task(self._forward_output(on_line))

    @property
    def pid(self) -> int:
        """Its process id, which is also its process group's."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    @property
    def ended_well(self) -> bool:
        """Whether it has ended by itself, with exit code 0."""
        return self._process.returncode == 0

    async def wait(self) -> ProcessExit:
        """Returns when it has ended and its last output was forwarded."""
        returncode = await self._process.wait()
        await asyncio.wait({self._output}, timeout=_LAST_OUTPUT_S)
        self._output.cancel()
        return ProcessExit(self.spec, returncode)

    def terminate(self) -> None:
        """Asks it to drain and end."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Ends it and what it started, now."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def _forward_output(self, on_line: OnLine) -> None:
        assert self._process.stdout is not None
        async for line in split_lines(self._process.stdout):
            on_line(self.spec.name, line)


class Fleet:
    """The processes of `specs`, started in that order; `async with` kills what still runs at its end."""

    def __init__(self, specs: Sequence[ProcessSpec], on_line: OnLine) -> None:
        self.specs = tuple(specs)
        self._on_line = on_line
        self._watchers: list[asyncio.Task[None]] = []
        self._exits: asyncio.Queue[ProcessExit] = asyncio.Queue()
        self.processes: list[FleetProcess] = []

    async def start(self) -> None:
        """Starts every process.

        Raises:
            OSError: a program cannot be run.
        """
        for spec in self.specs:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=_environment(spec.environment),
                start_new_session=True,
            )
            running = FleetProcess(spec, process, self._on_line)
            self.processes.append(running)
            self._watchers.append(asyncio.create_task(self._watch(running)))

    async def wait_ready(self, timeout: float) -> None:  # noqa: ASYNC109 (the error names who is late)
        """Returns when every process is ready.

        Raises:
            FleetError: one ended before, or was not ready within `timeout` seconds.
        """
        waiting = {asyncio.create_task(_wait_ready(spec)): spec.name for spec in self.specs}
        ended = asyncio.create_task(self.next_exit())
        try:
            async with asyncio.timeout(timeout):
                while waiting:
                    either: set[asyncio.Task[Any]] = {*waiting, ended}
                    done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if ended in done:
                        raise FleetError(f"{ended.result()} before it was ready")
                    for task in done:
                        task.result()
                        del waiting[task]
        except TimeoutError as error:
            raise FleetError(f"not ready within {timeout:g} s: {', '.join(waiting.values())}") from error
        except BatonClientError as error:
            raise FleetError(f"health check failed: {error.status.name}: {error.message}") from error
        finally:
            for task in (*waiting, ended):
                task.cancel()
            await asyncio.wait({*waiting, ended})

    async def next_exit(self) -> ProcessExit:
        """Waits for the next process to end; each is told of once."""
        return await self._exits.get()

    def num_running(self, kind: str) -> int:
        """How many processes of a kind still run."""
        return sum(process.is_running for process in self.processes if process.spec.kind == kind)

    @property
    def ended_well(self) -> bool:
        """Whether every process that was started has ended by itself, with exit code 0."""
        return all(process.ended_well for process in self.processes)

    async def stop(self, grace_s: float) -> list[str]:
        """Ends every process: SIGTERM, then SIGKILL for those that still run after `grace_s` seconds.

        Kinds that started later end first, and then those before: decode drains while prefill still serves it.

        Returns:
            Names of the processes that had to be killed.
        """
        killed = []
        for kind in reversed(list(dict.fromkeys(spec.kind for spec in self.specs))):
            killed += await self._stop_kind(kind, grace_s)
        await self._join()
        return killed

    async def _stop_kind(self, kind: str, grace_s: float) -> list[str]:
        group = [process for process in self.processes if process.spec.kind == kind and process.is_running]
        if not group:
            return []
        for process in group:
            process.terminate()
        await asyncio.wait([asyncio.create_task(process.wait()) for process in group], timeout=grace_s)
        late = [process for process in group if process.is_running]
        for process in late:
            process.kill()
        return [process.spec.name for process in late]

    def kill(self) -> None:
        """Ends every process now; a `stop` that is under way returns soon."""
        for process in self.processes:
            process.kill()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        await self._join()

    async def _watch(self, process: FleetProcess) -> None:
        await self._exits.put(await process.wait())

    async def _join(self) -> None:
        if self._watchers:
            await asyncio.wait(self._watchers)


def service_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command by which this process, and no other, starts a service's module with its own Python.

    The service ends when this process does, killed or not. -P: no module comes from the current directory, which may
    hold others of the same names.
    """
    return (sys.executable, "-P", "-m", module, *arguments, "--parent", str(os.getpid()))


async def split_lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of a stream without their ends; one that is too long comes in pieces, so that reading never stalls."""
    rest = b""
    while chunk := await stream.read(_LONGEST_LINE):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
        if len(rest) >= _LONGEST_LINE:
            yield rest.decode(errors="replace")
            rest = b""
    if rest:
        yield rest.decode(errors="replace")


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `changes`, which also replace names that differ in case, as Baton ignores it."""
    names = {name.upper() for name in changes}
    inherited = {name: value for name, value in os.environ.items() if name.upper() not in names}
    return {**inherited, "PYTHONUNBUFFERED": "1", **changes}


async def _wait_ready(spec: ProcessSpec) -> None:
    async with grpc.aio.insecure_channel(spec.target, channel_options(spec.target)) as channel:
        while not await check_async(channel, spec.service, CHECK_TIMEOUT_S):  # noqa: ASYNC110 (it is another process)
            await asyncio.sleep(POLL_INTERVAL_S)
