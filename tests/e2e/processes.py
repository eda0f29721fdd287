"""Real service processes of the default model, for tests."""

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from baton_client import AsyncBatonClient
from cli.fleet import Fleet
from cli.layout import ConfigFiles, lay_out

READY_TIMEOUT_S = 240.0
STOP_GRACE_S = 20.0

SMALL_STEPS: Mapping[str, str] = {
    "BATON_SERVING__MAX_BATCH_TOKENS": "{prefill: 512, decode: 256}",
    "BATON_SERVING__MAX_NUM_SEQS": "{prefill: 16, decode: 16}",
    "BATON_SERVING__PREFILL_TOKEN_BUCKETS": "{prefill: {prefill_text: [64, 512]}, decode: {mixed: [32, 256]}}",
    "BATON_SERVING__DECODE_BATCH_BUCKETS": "{decode: {decode: [1, 4, 16]}}",
}
"""Budgets and ladders that warm up fast."""


@dataclass
class Deployment:
    """Running processes, a client of all decode services, and what the processes logged."""

    fleet: Fleet
    client: AsyncBatonClient
    targets: list[str]
    lines: list[tuple[str, str]] = field(default_factory=list)

    def events(self, kind: str, event: str) -> list[dict[str, Any]]:
        """The log lines of one event from processes of one kind, in order."""
        parsed = (json.loads(line) for name, line in self.lines if name.startswith(kind) and line.startswith("{"))
        return [line for line in parsed if line["event"] == event]


@asynccontextmanager
async def deployed(num_prefill: int, num_decode: int, **variables: str) -> AsyncGenerator[Deployment]:
    """So many processes of each kind on free ports, ready; they log everything as JSON.

    Args:
        variables: environment variables, as SERVING__KV__BLOCK_SIZE for BATON_SERVING__KV__BLOCK_SIZE.
    """
    environ = {**os.environ, **SMALL_STEPS, **{f"BATON_{name}": value for name, value in variables.items()}}
    for kind in ("PREFILL", "DECODE"):
        environ |= {f"BATON_{kind}__LOG__LEVEL": "debug", f"BATON_{kind}__LOG__FORMAT": "json"}
        environ |= {f"BATON_{kind}__PORT": "0", f"BATON_{kind}__METRICS_PORT": "0"}
    layout = lay_out(ConfigFiles(), num_prefill, num_decode, environ)
    specs = [replace(spec, environment={**environ, **spec.environment}) for spec in layout.specs]
    lines: list[tuple[str, str]] = []
    async with (
        Fleet(specs, lambda name, line: lines.append((name, line))) as fleet,
        AsyncBatonClient(layout.targets) as client,
    ):
        await fleet.start()
        try:
            await fleet.wait_ready(READY_TIMEOUT_S)
            yield Deployment(fleet, client, layout.targets, lines)
            assert await fleet.stop(STOP_GRACE_S) == [], "every process ends by itself when asked to"
        except BaseException:
            print("\n".join(f"{name} | {line}" for name, line in lines[-60:]))  # noqa: T201 (shown where a test fails)
            raise
