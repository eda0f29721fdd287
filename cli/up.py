"""`baton up`: both services on this machine, until they are told to end or one kind of them is gone."""

import asyncio
import itertools
import signal
from collections.abc import Callable, Sequence
from typing import Any, Self

from rich.console import Console
from rich.text import Text

from cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from cli.failures import plain_failures, print_error
from cli.fleet import Fleet, FleetError
from cli.layout import ConfigFiles, busy_ports, lay_out
from cli.leftovers import remove_leftovers

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STYLES = ("cyan", "magenta", "green", "yellow", "blue", "bright_red")
_STOP_MARGIN_S = 5.0
"""What a process gets beyond its own drain time before it is killed."""

Say = Callable[[str], None]


def run(num_prefill: int, num_decode: int, files: ConfigFiles, ready_timeout_s: float) -> int:
    """Runs the services in the foreground; returns the exit code."""
    with plain_failures():
        layout = lay_out(files, num_prefill, num_decode)
    if busy := busy_ports(layout.specs):
        for sentence in busy:
            print_error(sentence)
        return EXIT_FAILED
    output = PrefixedOutput([spec.name for spec in layout.specs])
    fleet = Fleet(layout.specs, output.line)
    try:
        return asyncio.run(supervise(fleet, output.say, ready_timeout_s, layout.drain_grace_s + _STOP_MARGIN_S))
    finally:
        remove_leftovers(fleet, layout.shm_dir)


async def supervise(fleet: Fleet, say: Say, ready_timeout_s: float, grace_s: float) -> int:
    """Starts a fleet, keeps it until a signal or its end, stops it; returns the exit code.

    The first SIGINT, SIGTERM or SIGHUP lets the processes drain, which takes `grace_s` seconds at most; the second one
    kills them. Being told to end is how this ends well: 0, once all were ready and have drained.
    """
    is_ready = asyncio.Event()
    with SignalCount() as signals:
        async with fleet:
            await _start(fleet, say)
            serving = asyncio.create_task(_serve(fleet, say, ready_timeout_s, is_ready))
            await _until(serving, signals.first)
            failed = serving.done()
            serving.cancel()
            if not failed:
                say("draining; press Ctrl-C again to kill")
            exit_code = await _stop(fleet, say, grace_s, signals.second)
            if failed:
                return EXIT_FAILED
            return exit_code if is_ready.is_set() else EXIT_INTERRUPTED


async def _start(fleet: Fleet, say: Say) -> None:
    await fleet.start()
    for process in fleet.processes:
        spec = process.spec
        say(f"started {spec.name}: pid {process.pid}, port {spec.port}, metrics port {spec.metrics_port}")


async def _serve(fleet: Fleet, say: Say, ready_timeout_s: float, is_ready: asyncio.Event) -> None:
    """Returns when the fleet cannot serve, having said why."""
    try:
        await fleet.wait_ready(ready_timeout_s)
    except FleetError as error:
        say(f"error: {error}")
        return
    is_ready.set()
    say(f"ready: {','.join(spec.target for spec in fleet.specs if spec.kind == 'decode')}")
    while True:
        ended = await fleet.next_exit()
        say(str(ended))
        if fleet.num_running(ended.spec.kind) == 0:
            say(f"error: no {ended.spec.kind} process is left")
            return


async def _stop(fleet: Fleet, say: Say, grace_s: float, impatience: asyncio.Event) -> int:
    stopping = asyncio.create_task(fleet.stop(grace_s))
    await _until(stopping, impatience)
    if not stopping.done():
        fleet.kill()
        await stopping
        return EXIT_INTERRUPTED
    for name in stopping.result():
        say(f"error: {name} did not end within {grace_s:g} s and was killed")
    return EXIT_FAILED if stopping.result() else 0


async def _until(task: asyncio.Task[Any], event: asyncio.Event) -> None:
    """Waits for a task's end or an event, whichever is first."""
    waiter = asyncio.create_task(event.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()


class SignalCount:
    """Events for the first and the second signal that asks this process to end, while the `with` block runs."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def _count(self) -> None:
        event = self.second if self.first.is_set() else self.first
        event.set()

    def __enter__(self) -> Self:
        for signum in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(signum, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for signum in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(signum)


class PrefixedOutput:
    """Prints lines behind the name of the process they come from, in its colour on a terminal."""

    def __init__(self, names: Sequence[str], console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._width = max(map(len, names))
        self._styles = {"baton": "bold", **dict(zip(names, itertools.cycle(_STYLES), strict=False))}

    def line(self, name: str, line: str) -> None:
        """Prints one line of a process's output."""
        prefix = (f"{name:<{self._width}} | ", self._styles[name])
        self._console.print(Text.assemble(prefix, Text.from_ansi(line)), soft_wrap=True)

    def say(self, message: str) -> None:
        """Prints one line of our own."""
        self.line("baton", message)
