"""The services that are measured: real processes on free ports, one kind of deployment at a time.

Configs are those of this checkout with what a measurement fixes on top: threads, ports, pool sizes. `BATON_…`
variables of the caller's environment hold too, so that settings can be compared.
"""

import json
import os
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from baton_client import AsyncBatonClient, BatonClientError
from benchmarks.command import BenchmarkError
from cli.fleet import Fleet, FleetError
from cli.layout import ConfigFiles, lay_out
from cli.leftovers import remove_leftovers

NUM_KV_BLOCKS = 1024
"""Of each service: room for eight long streams and a long prompt beside them."""

_READY_TIMEOUT_S = 120.0
_CALL_TIMEOUT_S = 120.0
_STOP_S = 10.0
_NUM_LAST_LINES = 30


@dataclass(frozen=True)
class Deployed:
    """Processes that are ready.

    Attributes:
        target: host:port of the decode service.
        client: a client of it, connected.
        pids: process ids by kind, "prefill" and "decode".
    """

    target: str
    client: AsyncBatonClient
    pids: Mapping[str, int]


@asynccontextmanager
async def running_split() -> AsyncGenerator[Deployed]:
    """A prefill and a decode service of one thread each, which exchange KV through shared memory."""
    settings = {f"BATON_{kind}__{key}": value for kind in ("PREFILL", "DECODE") for key, value in _common(1).items()}
    async with _running(1, {**settings, **_shm_only()}) as deployed:
        yield deployed


@asynccontextmanager
async def running_single(threads: int, mixed_budget: int | None = None) -> AsyncGenerator[Deployed]:
    """One process that prefills and decodes in the same steps.

    Args:
        threads: it computes with.
        mixed_budget: most tokens of a step; None: as configured.
    """
    settings = {f"BATON_DECODE__{key}": value for key, value in _common(threads).items()}
    settings |= {"BATON_DECODE__PREFILL_TARGETS": "[]", "BATON_DECODE__PREFILL_UNAVAILABLE": "local"}
    settings["BATON_SERVING__LOCAL_PREFILL_MAX_TOKENS"] = "null"
    if mixed_budget is not None:
        settings["BATON_SERVING__MAX_BATCH_TOKENS__DECODE__MIXED"] = str(mixed_budget)
    async with _running(0, settings) as deployed:
        yield deployed


def _common(threads: int) -> dict[str, str]:
    return {
        "HOST": "127.0.0.1",
        "PORT": "0",
        "METRICS_PORT": "0",
        "THREADS": str(threads),
        "NUM_KV_BLOCKS": str(NUM_KV_BLOCKS),
        "DRAIN_GRACE_S": "1",
    }


def _shm_only() -> dict[str, str]:
    """A run that fell back to another transport would measure something else: it must not start."""
    return {f"BATON_{kind}__TRANSPORTS": json.dumps(["shm"]) for kind in ("PREFILL", "DECODE")}


@asynccontextmanager
async def _running(num_prefill: int, settings: Mapping[str, str]) -> AsyncGenerator[Deployed]:
    names = {name.upper() for name in settings}
    inherited = {name: value for name, value in os.environ.items() if name.upper() not in names}
    environ = {**inherited, **settings}
    layout = lay_out(ConfigFiles(), num_prefill, 1, environ)
    specs = [replace(spec, environment={**settings, **spec.environment}) for spec in layout.specs]
    lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
    fleet = Fleet(specs, lambda name, line: lines.append(f"{name} | {line}"))
    try:
        async with fleet, AsyncBatonClient(layout.targets, timeout=_CALL_TIMEOUT_S) as client:
            try:
                await fleet.start()
                await fleet.wait_ready(_READY_TIMEOUT_S)
                pids = {process.spec.kind: process.pid for process in fleet.processes}
                yield Deployed(layout.targets[0], client, pids)
            finally:
                await fleet.stop(_STOP_S)
    except FleetError as error:
        raise BenchmarkError("\n".join([*lines, str(error)])) from error
    except BatonClientError as error:
        raise BenchmarkError("\n".join([*lines, f"{error.status.name}: {error.message}"])) from error
    finally:
        remove_leftovers(fleet, layout.shm_dir)
