"""Which walk and which rung a service's steps run at, as its metrics say."""

import asyncio
from pathlib import Path

from baton_client import AsyncBatonClient
from decode_service.server import DecodeServer
from tests.services import greedy, running_decode, serving_config

BUCKETS = {"decode": {"prefill_text": [20, 40], "mixed": [8, 64]}}


def steps(server: DecodeServer, walk: str, rung: object = None) -> float:
    """Steps of a walk, or of a walk at a rung."""
    labels = {"walk": walk} if rung is None else {"walk": walk, "rung": str(rung)}
    name = "baton_decode_steps_total" if rung is None else "baton_decode_rung_steps_total"
    return server.metrics.registry.get_sample_value(name, labels) or 0.0


async def test_prompts_alone_run_at_the_rungs_of_prefill_text(tiny_llama_dir: Path) -> None:
    serving = serving_config(tiny_llama_dir, local_prefill_max_tokens=None, prefill_token_buckets=BUCKETS)
    async with (
        running_decode(serving, []) as server,
        AsyncBatonClient(f"127.0.0.1:{server.port}") as client,
    ):
        alone = await client.generate("x" * 30, **greedy(max_tokens=3))
        assert steps(server, "prefill_text", 40) == 1, "30 tokens, at the rung that holds them"
        assert steps(server, "mixed") == 0
        assert steps(server, "decode") == 2
        await client.generate("y" * 50, **greedy(max_tokens=1))
        assert steps(server, "prefill_text", "none") == 1, "50 tokens: within the budget of 64, above the top rung"
        # While one generates, the prompt of another shares its steps.
        running = asyncio.create_task(client.generate("z" * 5, **greedy(max_tokens=200)))
        while steps(server, "decode") < 4:
            await asyncio.sleep(0.001)
        beside = await client.generate("x" * 30, **greedy(max_tokens=3, cache_salt="other"))
        assert steps(server, "mixed") == 1
        assert steps(server, "mixed", 64) == 1
        assert beside.completions[0].token_ids == alone.completions[0].token_ids
        await running


async def test_without_such_rungs_prompts_alone_run_mixed(tiny_llama_dir: Path) -> None:
    serving = serving_config(tiny_llama_dir, local_prefill_max_tokens=None)
    async with (
        running_decode(serving, []) as server,
        AsyncBatonClient(f"127.0.0.1:{server.port}") as client,
    ):
        await client.generate("x" * 30, **greedy(max_tokens=1))
        assert steps(server, "mixed", 32) == 1
        assert steps(server, "prefill_text") == 0


async def test_dropped_rungs_and_budgets_are_shown(tiny_llama_dir: Path) -> None:
    serving = serving_config(
        tiny_llama_dir,
        max_batch_tokens={"prefill": 64, "decode": {"mixed": 64}},
        prefill_token_buckets={"decode": {"mixed": [8, 64, 128, 256], "prefill_text": [32, 96, 100]}},
    )
    async with running_decode(serving, [], prefill_unavailable="local") as server:
        gauges = {
            name: {
                walk: server.metrics.registry.get_sample_value(f"baton_decode_{name}", {"walk": walk})
                for walk in ("decode", "mixed", "prefill_text")
            }
            for name in ("rungs_dropped", "rungs_prepared", "step_budget_tokens")
        }
    assert gauges == {
        "rungs_dropped": {"decode": 0, "mixed": 2, "prefill_text": 1},
        "rungs_prepared": {"decode": 4, "mixed": 2, "prefill_text": 2},
        "step_budget_tokens": {"decode": None, "mixed": 64, "prefill_text": 64},
    }
