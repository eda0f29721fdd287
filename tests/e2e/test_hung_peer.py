"""A prefill process that hangs without dying is noticed by the keepalive, and its requests finish elsewhere."""

import asyncio
import os
import signal

import pytest

from tests.e2e.processes import deployed

NOTICED_WITHIN_S = 45.0
"""Keepalive (5 s + 4 s), and the prompt computed anew; without the ping time-out it would be over 60 s."""


@pytest.mark.usefixtures("smollm2_dir")
async def test_a_stopped_prefill_is_taken_for_dead() -> None:
    async with deployed(2, 1) as deployment:
        prompt = [(7 * position) % 40000 for position in range(1500)]
        call = asyncio.create_task(deployment.client.generate(prompt, max_tokens=2, ignore_eos=True, timeout=120))
        while not (landed := [i for i in (0, 1) if deployment.events(f"prefill-{i}", "chunk_landed")]):
            await asyncio.sleep(0.01)
        victim = next(p for p in deployment.fleet.processes if p.spec.name == f"prefill-{landed[0]}")
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(NOTICED_WITHIN_S):
                result = await call
        finally:
            os.kill(victim.pid, signal.SIGCONT)
        assert result.usage.completion_tokens == 2
        assert deployment.events("decode", "prefill_attempt_failed")
