"""What a client sees of a stream, and when."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from baton_client import Delta, Finished, FinishReason, Started, Usage
from shared.kv.handle import KvHandle
from shared.kv.pool import KvPool
from shared.kv.transports.base import KvTransport
from tests.services import Split, greedy, running_single, running_split, serving_config
from tests.tiny_models import write_tiny_model


def prompt(length: int) -> list[int]:
    return [(31 * position) % 256 for position in range(length)]


class GatedTransport:
    """Holds every fetch back until `gate` is set."""

    def __init__(self, inner: KvTransport) -> None:
        self.name = inner.name
        self.gate = asyncio.Event()
        self.handles: list[KvHandle] = []
        self.export, self.release, self.close = inner.export, inner.release, inner.close
        self._inner = inner

    async def fetch(self, handle: KvHandle, destination: KvPool, block_ids: Sequence[int]) -> None:
        self.handles.append(handle)
        await self.gate.wait()
        await self._inner.fetch(handle, destination, block_ids)


def gate(split: Split) -> GatedTransport:
    transports = split.decode.core.links.transports
    gated = GatedTransport(transports["shm"])
    transports["shm"] = gated
    return gated


async def test_events_come_in_order(tiny_llama_dir: Path) -> None:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        options = greedy(request_id="mine", max_tokens=5)
        events = [event async for event in split.client.stream(prompt(20), **options)]
        again = await split.client.generate(prompt(20), **options)
    started, *deltas, finished, usage = events
    assert started == Started("mine", prompt_tokens=20, cached_tokens=0)
    assert [type(event) for event in deltas] == [Delta] * 5
    assert finished == Finished(0, FinishReason.LENGTH)
    assert isinstance(usage, Usage)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (20, 5, 0)
    times = usage.timings
    assert 0 < times.kv_transfer < times.total
    assert 0 <= times.queue < times.first_token <= times.total
    assert 0 < times.prefill < times.first_token
    (completion,) = again.completions
    assert completion.text == "".join(delta.text for delta in deltas if isinstance(delta, Delta))
    assert completion.token_ids == tuple(i for delta in deltas if isinstance(delta, Delta) for i in delta.token_ids)


async def test_the_first_token_does_not_wait_for_kv(tiny_llama_dir: Path) -> None:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        gated = gate(split)
        async with asyncio.timeout(30), split.client.stream(prompt(200), **greedy(max_tokens=4)) as stream:
            assert isinstance(await anext(stream), Started)
            first = await anext(stream)
            assert isinstance(first, Delta)
            assert len(first.token_ids) == 1
            assert len(gated.handles) == 1, "fetches go in order, and the first is held back"
            waiting = asyncio.ensure_future(anext(stream))
            done, _ = await asyncio.wait({waiting}, timeout=0.3)
            assert not done, "no second token can come before the KV is here"
            gated.gate.set()
            assert isinstance(await waiting, Delta)


async def test_kv_is_fetched_while_later_chunks_compute(tiny_llama_dir: Path) -> None:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        with capture_logs() as lines:
            await split.client.generate(prompt(400), max_tokens=1)
    order = [(line["event"], line.get("end_token", line.get("num_computed_tokens"))) for line in lines]
    assert [end for event, end in order if event == "handle_sent"] == [64, 128, 192, 256, 320, 384, 400]
    assert order.index(("kv_fetched", 64)) < order.index(("chunk_landed", 400))


@pytest.mark.parametrize("num_eos", [1, 12])
async def test_a_first_token_that_ends_the_text(tmp_path: Path, num_eos: int) -> None:
    """EOS as the first token: nothing more is generated; `ignore_eos` and `min_tokens` go on."""
    model = write_tiny_model(tmp_path / "model")
    async with running_single(serving_config(model)) as single:
        plain = await single.generate(prompt(30), **greedy(max_tokens=num_eos))
    (first, *_) = plain.completions[0].token_ids
    async with running_split(serving_config(model)) as split:
        stopped = await split.client.generate(
            prompt(30), temperature=0, token_ids=True, stop_token_ids=[first], max_tokens=num_eos
        )
        held_off = await split.client.generate(
            prompt(30), temperature=0, token_ids=True, stop_token_ids=[first], min_tokens=1, max_tokens=num_eos
        )
        await split.settled()
    (completion,) = stopped.completions
    assert (completion.text, completion.token_ids, completion.matched_stop) == ("", (first,), first)
    assert completion.finish_reason is FinishReason.STOP
    assert held_off.completions[0].token_ids[0] != first


async def test_a_stop_string_over_the_hand_off(tiny_llama_dir: Path) -> None:
    """The stop begins in prefill's token and ends in decode's."""
    async with running_split(serving_config(tiny_llama_dir)) as split:
        plain = await split.client.generate("Once upon a time", **greedy(max_tokens=8))
        text = plain.completions[0].text
        assert len(text) >= 3
        stop = text[:3]
        result = await split.client.generate("Once upon a time", **greedy(max_tokens=8, stop=stop))
        kept = await split.client.generate("Once upon a time", **greedy(max_tokens=8, stop=stop, include_stop=True))
        await split.settled()
    assert (result.completions[0].text, result.completions[0].matched_stop) == ("", stop)
    assert kept.completions[0].text == stop
    assert result.completions[0].finish_reason is FinishReason.STOP


async def test_the_context_ends_the_text(tiny_llama_dir: Path) -> None:
    async with running_split(serving_config(tiny_llama_dir, max_model_len=40)) as split:
        result = await split.client.generate(prompt(33), **greedy(max_tokens=100))
    assert len(result.completions[0].token_ids) == 7
    assert result.completions[0].finish_reason is FinishReason.LENGTH
