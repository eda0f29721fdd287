"""Services with int8 weights: the same output split and in one process, and nothing shared with other weights."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from baton_client import AsyncBatonClient, Unavailable
from shared.config.serving import ServingConfig
from tests.kernel_libraries import native_library
from tests.services import (
    TINY_SERVING,
    greedy,
    running_decode,
    running_prefill,
    running_single,
    running_split,
    serving_config,
)
from tests.tiny_models import write_tiny_model

# Around the edges of blocks (32), rungs (8, 16, 32, 64) and chunks (64); with many rows and few in a step.
PROMPT_LENS = (1, 7, 24, 25, 31, 32, 33, 64, 65, 129, 200)
MAX_TOKENS = 12
KERNELS: Mapping[str, Mapping[str, str]] = {
    "native": {"kernels": "native", "dtype": "bfloat16"},
    "torch": {"kernels": "torch", "dtype": "float32"},
}


def prompt(length: int) -> list[int]:
    return [(37 * position + 11 * length) % 256 for position in range(length)]


async def complete(client: AsyncBatonClient, length: int, salt: str) -> tuple[int, ...]:
    result = await client.generate(prompt(length), **greedy(cache_salt=f"{salt}{length}", max_tokens=MAX_TOKENS))
    return result.completions[0].token_ids


async def complete_all(client: AsyncBatonClient, *, together: bool) -> list[tuple[int, ...]]:
    calls = [complete(client, length, "together" if together else "alone") for length in PROMPT_LENS]
    return list(await asyncio.gather(*calls)) if together else [await call for call in calls]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that native kernels can run."""
    return write_tiny_model(tmp_path_factory.mktemp("int8") / "llama", head_dim=32)


def config(directory: Path, kernels: str, weights: str) -> ServingConfig:
    settings = {**TINY_SERVING, **KERNELS[kernels], "kv": {"block_size": 32}, "weights": weights}
    return serving_config(directory, settings)


@pytest.mark.parametrize("kernels", KERNELS)
async def test_split_output_equals_the_single_process(directory: Path, kernels: str) -> None:
    if kernels == "native":
        native_library()
    serving = config(directory, kernels, "int8")
    async with running_single(serving) as single:
        expected = await complete_all(single, together=False)
        assert await complete_all(single, together=True) == expected
    assert len(set(expected)) > len(PROMPT_LENS) // 2, "outputs that are all alike would prove nothing"
    async with running_split(serving) as split:
        assert await complete_all(split.client, together=False) == expected
        assert await complete_all(split.client, together=True) == expected
        assert split.metric("decode", "kv_transferred_bytes_total", transport="shm") > 0


async def test_services_with_other_weights_refuse_each_other(directory: Path) -> None:
    async with (
        running_prefill(config(directory, "torch", "int8")) as prefill,
        running_decode(config(directory, "torch", "dtype"), [prefill.port]) as decode,
        AsyncBatonClient(f"127.0.0.1:{decode.port}") as client,
    ):
        with pytest.raises(Unavailable) as caught:
            await client.generate("hello")
    assert "FAILED_PRECONDITION" in str(caught.value)
    assert "the services differ in weights: prefill has int8, decode has dtype" in str(caught.value)
