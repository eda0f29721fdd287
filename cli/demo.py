"""`make demo`: both services on free ports, one prompt streamed from the real model, everything stopped again.

With PROMPT in the environment its text is continued; without it, a question is answered through the chat template.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import TextIO

from baton_client import AsyncBatonClient, BatonClientError, ChatMessage, Delta, Prompt
from cli.failures import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, print_error
from cli.fleet import Fleet, FleetError
from cli.layout import ConfigFiles, Layout, free_port, lay_out
from cli.stats import StreamStats
from shared.errors import ConfigError

QUESTION = "Tell me in two sentences why the sky is blue."
MAX_TOKENS = 64
READY_TIMEOUT_S = 300.0
_STOP_S = 15.0
_NUM_LAST_LINES = 20


def main() -> int:
    """Runs the demo; returns the exit code."""
    try:
        layout = lay_out(ConfigFiles(), num_prefill=1, num_decode=1, environ=_with_free_ports())
    except ConfigError as error:
        print_error(error.message)
        return EXIT_USAGE
    descriptor, name = tempfile.mkstemp(prefix="baton-demo-", suffix=".log", text=True)
    log_path = Path(name)
    with os.fdopen(descriptor, "w", encoding="utf-8") as log:
        exit_code = _run(layout, log)
    if exit_code == EXIT_FAILED:
        _show_log(log_path)
    else:
        log_path.unlink()
    return exit_code


def _run(layout: Layout, log: TextIO) -> int:
    try:
        asyncio.run(_demo(layout, os.environ.get("PROMPT", ""), log))
    except FleetError as error:
        print_error(str(error))
    except BatonClientError as error:
        print_error(f"{error.status.name}: {error.message}")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    else:
        return 0
    return EXIT_FAILED


async def _demo(layout: Layout, text: str, log: TextIO) -> None:
    prompt: Prompt = text or [ChatMessage("user", QUESTION)]
    async with Fleet(layout.specs, lambda name, line: _log_line(log, name, line)) as fleet:
        await fleet.start()
        for process in fleet.processes:
            spec = process.spec
            _write(f"started {spec.name}: pid {process.pid}, port {spec.port}, metrics port {spec.metrics_port}\n")
        await fleet.wait_ready(READY_TIMEOUT_S)
        _write(f"ready\n\n{text or QUESTION}" + ("" if text else "\n\n"))
        await _stream(layout.targets, prompt)
        await fleet.stop(_STOP_S)
        _write("stopped both services\n")


async def _stream(targets: list[str], prompt: Prompt) -> None:
    stats = StreamStats()
    async with (
        AsyncBatonClient(targets) as client,
        client.stream(prompt, temperature=0, max_tokens=MAX_TOKENS) as events,
    ):
        async for event in events:
            stats.observe(event)
            if isinstance(event, Delta):
                _write(event.text)
    _write(f"\n\n{stats.summary()}\n")


def _with_free_ports() -> dict[str, str]:
    names = [f"BATON_{kind}__{port}" for kind in ("PREFILL", "DECODE") for port in ("PORT", "METRICS_PORT")]
    inherited = {name: value for name, value in os.environ.items() if name.upper() not in names}
    return {**inherited, **{name: str(free_port()) for name in names}}


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _log_line(log: TextIO, name: str, line: str) -> None:
    log.write(f"{name} | {line}\n")
    log.flush()


def _show_log(path: Path) -> None:
    last_lines = path.read_text(encoding="utf-8").splitlines()[-_NUM_LAST_LINES:]
    sys.stderr.write("\n".join([*last_lines, f"the services' log: {path}", ""]))


if __name__ == "__main__":
    sys.exit(main())
