"""Two prefill and two decode processes on one host, under load, and one of them killed."""

import asyncio
import random

import pytest

from baton_client import FinishReason
from tests.e2e.processes import Deployment, deployed

NUM_REQUESTS = 40


async def run_requests(deployment: Deployment, salt: str) -> None:
    """40 requests of mixed length at once; all must succeed."""

    async def one(index: int) -> None:
        length = random.Random(index).choice([1, 5, 31, 33, 64, 100, 150])
        result = await deployment.client.generate(
            [index + 100] * length, temperature=0, max_tokens=5, ignore_eos=True, cache_salt=salt, timeout=300
        )
        assert result.usage.completion_tokens == 5
        assert result.completions[0].finish_reason is FinishReason.LENGTH

    await asyncio.gather(*(one(index) for index in range(NUM_REQUESTS)))


@pytest.mark.usefixtures("smollm2_dir")
async def test_two_of_each_and_one_killed() -> None:
    async with deployed(2, 2) as deployment:
        await run_requests(deployment, "first")
        for kind, event in (("prefill", "chunk_landed"), ("decode", "request_done")):
            for replica in (0, 1):
                assert deployment.events(f"{kind}-{replica}", event), f"{kind}-{replica} did no work"

        victim = next(process for process in deployment.fleet.processes if process.spec.name == "prefill-0")
        num_before = len(deployment.events("prefill-0", "chunk_landed"))
        load = asyncio.create_task(run_requests(deployment, "second"))
        while len(deployment.events("prefill-0", "chunk_landed")) < num_before + 2 and not load.done():
            await asyncio.sleep(0.01)
        assert not load.done(), "the kill must come in the middle of the load"
        victim.kill()
        await load
        assert deployment.events("decode", "prefill_attempt_failed"), "the kill hit requests, and they were made up for"
