"""`make demo`: both services on free ports, one prompt streamed from the real model, everything stopped again.

With PROMPT in the environment its text is continued; without it, a question is answered through the chat template.
"""

from cli.start import interrupts_exit, quiet_grpc

quiet_grpc()

with interrupts_exit():
    import asyncio
    import os
    import sys
    import tempfile
    from pathlib import Path
    from typing import TextIO

    from baton_client import AsyncBatonClient, BatonClientError, ChatMessage, Delta, Prompt
    from cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
    from cli.failures import discard_output, print_error
    from cli.fleet import Fleet, FleetError
    from cli.layout import ConfigFiles, Layout, free_port, lay_out
    from cli.leftovers import remove_leftovers
    from cli.stats import StreamStats
    from shared.errors import ConfigError

QUESTION = "Explain in two sentences what a computer program is."
MAX_TOKENS = 64
READY_TIMEOUT_S = 300.0
_STOP_S = 15.0
_HASTY_STOP_S = 3.0
"""What each kind of process gets to end by itself where the demo ends early."""
_NUM_LAST_LINES = 20


def main() -> int:
    """Runs the demo; returns the exit code."""
    try:
        return _main()
    except ConfigError as error:
        print_error(error.message)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return EXIT_FAILED


def _main() -> int:
    layout = lay_out(ConfigFiles(), num_prefill=1, num_decode=1, environ=_with_free_ports())
    descriptor, name = tempfile.mkstemp(prefix="baton-demo-", suffix=".log", text=True)
    log_path, failure = Path(name), ""
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as log:
            failure = _run(layout, log)
    finally:
        if not failure:
            log_path.unlink()
    if not failure:
        return 0
    print_error(failure)
    _show_log(log_path)
    return EXIT_FAILED


def _run(layout: Layout, log: TextIO) -> str:
    """Runs the demo; returns why it failed, or nothing."""
    fleet = Fleet(layout.specs, lambda name, line: _log_line(log, name, line))
    try:
        asyncio.run(_demo(fleet, layout.targets, os.environ.get("PROMPT", "")))
    except FleetError as error:
        return str(error)
    except BatonClientError as error:
        return f"{error.status.name}: {error.message}"
    finally:
        remove_leftovers(fleet, layout.shm_dir)
    return ""


async def _demo(fleet: Fleet, targets: list[str], text: str) -> None:
    stop_s = _HASTY_STOP_S
    async with fleet:
        try:
            await _start(fleet)
            _write(f"ready\n\n{text or QUESTION}" + ("" if text else "\n\n"))
            await _stream(targets, text or [ChatMessage("user", QUESTION)])
            stop_s = _STOP_S
        finally:
            await fleet.stop(stop_s)
        _write("stopped both services\n")


async def _start(fleet: Fleet) -> None:
    await fleet.start()
    for process in fleet.processes:
        spec = process.spec
        _write(f"started {spec.name}: pid {process.pid}, port {spec.port}, metrics port {spec.metrics_port}\n")
    await fleet.wait_ready(READY_TIMEOUT_S)


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
