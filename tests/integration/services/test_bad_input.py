"""Each bad request is refused with its reason and numbers, never reaches prefill, and disturbs nobody."""

import asyncio
import math
import struct
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from baton.v1 import generation_pb2 as pb
from baton_client import AlreadyExists, Delta, Embeddings, InvalidArgument, Regex, Started
from tests.services import Split, running_split, serving_config

NAN = math.nan
VECTOR = struct.pack("<64f", *[1.0] * 64)
WITH_NAN = VECTOR + struct.pack("<64f", *[1.0] * 63, NAN)
NOT_EVEN_A_SIZE = {"data_bytes": "255", "needed_bytes": "256", "num_tokens": "1", "hidden_size": "64"}

# options of a request → reason, metadata that must be there
REFUSED: list[tuple[dict[str, Any], str, dict[str, str]]] = [
    ({"prompt": ""}, "PROMPT_EMPTY", {"prompt_tokens": "0", "max_model_len": "1024"}),
    ({"prompt": []}, "PROMPT_EMPTY", {"prompt_tokens": "0"}),
    ({"prompt": [1] * 1024}, "PROMPT_TOO_LONG", {"prompt_tokens": "1024", "max_model_len": "1024"}),
    ({"prompt": "x" * 12289}, "PROMPT_TOO_LONG", {"characters": "12289", "max_characters": "12288"}),
    ({"prompt": Embeddings(b"", 0)}, "PROMPT_EMPTY", {"prompt_tokens": "0"}),
    ({"prompt": Embeddings(b"", 1024)}, "PROMPT_TOO_LONG", {"prompt_tokens": "1024", "max_model_len": "1024"}),
    ({"prompt": Embeddings(VECTOR, 1, "float64")}, "EMBEDDINGS_INVALID", {"value": "float64"}),
    ({"prompt": Embeddings(VECTOR[1:], 1)}, "EMBEDDINGS_INVALID", NOT_EVEN_A_SIZE),
    ({"prompt": Embeddings(VECTOR, 1, "bfloat16")}, "EMBEDDINGS_INVALID", {"needed_bytes": "128"}),
    ({"prompt": Embeddings(WITH_NAN, 2)}, "EMBEDDINGS_INVALID", {"position": "1", "index": "63", "value": "nan"}),
    ({"prompt": [1, 272]}, "TOKEN_ID_OUT_OF_RANGE", {"token_id": "272", "position": "1", "vocab_size": "272"}),
    ({"temperature": -0.5}, "SAMPLING_INVALID", {"field": "sampling.temperature", "value": "-0.5"}),
    ({"temperature": NAN}, "SAMPLING_INVALID", {"field": "sampling.temperature", "value": "nan"}),
    ({"temperature": math.inf}, "SAMPLING_INVALID", {"field": "sampling.temperature", "value": "inf"}),
    ({"top_p": NAN}, "SAMPLING_INVALID", {"field": "sampling.top_p"}),
    ({"top_p": 0.0}, "SAMPLING_INVALID", {"field": "sampling.top_p", "value": "0.0"}),
    ({"top_p": 1.5}, "SAMPLING_INVALID", {"field": "sampling.top_p", "value": "1.5"}),
    ({"min_p": -1.0}, "SAMPLING_INVALID", {"field": "sampling.min_p"}),
    ({"n": 0}, "SAMPLING_INVALID", {"field": "sampling.n", "value": "0"}),
    ({"max_tokens": 0}, "STOPPING_INVALID", {"field": "stopping.max_tokens", "value": "0"}),
    ({"max_tokens": 2, "min_tokens": 3}, "STOPPING_INVALID", {"field": "stopping.min_tokens", "value": "3"}),
    ({"stop": [""]}, "STOPPING_INVALID", {"field": "stopping.stop[0]"}),
    ({"stop": ["x"] * 17}, "STOPPING_INVALID", {"field": "stopping.stop", "value": "17"}),
    ({"stop_token_ids": [272]}, "TOKEN_ID_OUT_OF_RANGE", {"value": "272"}),
    ({"model": "gpt-9"}, "MODEL_UNKNOWN", {"model": "gpt-9"}),
    ({"request_id": "x" * 129}, "REQUEST_ID_INVALID", {"length": "129"}),
    ({"cache_salt": "x" * 1025}, "MALFORMED_MESSAGE", {"field": "cache_salt", "length": "1025"}),
]


@pytest_asyncio.fixture(name="split", scope="module", loop_scope="module")
async def _split(tiny_llama_dir: Path) -> AsyncGenerator[Split]:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        yield split


@pytest.mark.asyncio(loop_scope="module")
class TestRefusals:
    @pytest.mark.parametrize(("options", "reason", "numbers"), REFUSED, ids=lambda value: str(value)[:40])
    async def test_refused(self, split: Split, options: dict[str, Any], reason: str, numbers: dict[str, str]) -> None:
        given = {"prompt": "hello", "max_tokens": 2, **options}
        computed = split.metric("prefill", "prompt_tokens_total")
        for call in (self._generate, self._stream):
            with pytest.raises(InvalidArgument) as caught:
                await call(split, **given)
            assert caught.value.reason == reason
            assert numbers.items() <= caught.value.metadata.items()
        assert split.metric("prefill", "prompt_tokens_total") == computed
        await self._serves(split)

    async def test_a_stop_that_is_not_utf_8(self, split: Split) -> None:
        request = pb.GenerateRequest(text="hello", stopping=pb.Stopping(stop=["AB"])).SerializeToString()
        await self._malformed(split, request.replace(b"AB", b"\xff\xfe"))

    async def test_bytes_that_are_no_message(self, split: Split) -> None:
        await self._malformed(split, b"\xff\xff\xff\xff")

    async def test_no_prompt_at_all(self, split: Split) -> None:
        await self._malformed(split, b"", reason="PROMPT_MISSING")

    async def test_a_live_request_id(self, split: Split) -> None:
        async with split.client.stream("hello", request_id="same", max_tokens=200, ignore_eos=True) as first:
            assert isinstance(await anext(first), Started)
            with pytest.raises(AlreadyExists) as caught:
                await split.client.generate("hello", request_id="same")
            assert caught.value.metadata == {"request_id": "same"}
            assert isinstance(await anext(first), Delta)
        await split.settled()
        await split.client.generate("hello", request_id="same", max_tokens=1)

    async def test_more_than_the_pool_holds(self, split: Split, tiny_llama_dir: Path) -> None:
        async with running_split(serving_config(tiny_llama_dir), decode={"num_kv_blocks": 11}) as small:
            with pytest.raises(InvalidArgument) as caught:
                await small.client.generate([1] * 40, max_tokens=41)
            assert caught.value.reason == "REQUEST_EXCEEDS_POOL"
            assert {"needed_blocks": "11", "pool_blocks": "10"}.items() <= caught.value.metadata.items()
            await small.client.generate([1] * 40, max_tokens=40)
        async with running_split(serving_config(tiny_llama_dir), prefill={"num_kv_blocks": 5}) as small:
            with pytest.raises(InvalidArgument) as caught:
                await small.client.generate([1] * 40, max_tokens=1)
            assert {"needed_blocks": "5", "pool_blocks": "4"}.items() <= caught.value.metadata.items()
            await small.settled()
            await small.client.generate([1] * 32, max_tokens=1)
        await self._serves(split)

    async def _generate(self, split: Split, **options: Any) -> None:
        await split.client.generate(options.pop("prompt"), **options)

    async def _stream(self, split: Split, **options: Any) -> None:
        async with split.client.stream(options.pop("prompt"), **options) as stream:
            await anext(stream)

    async def _malformed(self, split: Split, request: bytes, reason: str = "MALFORMED_MESSAGE") -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{split.decode.port}") as channel:
            generate: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            generate = channel.unary_unary("/baton.v1.GenerationService/Generate")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await generate(request, timeout=10)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        details = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
        assert reason.encode() in bytes(details)
        await self._serves(split)

    async def _serves(self, split: Split) -> None:
        result = await split.client.generate("hello", max_tokens=2, temperature=0, ignore_eos=True)
        assert result.usage.completion_tokens == 2


@pytest.mark.asyncio(loop_scope="module")
async def test_requests_that_wait_for_a_compiler_keep_no_plain_one_waiting(split: Split) -> None:
    constraints = split.decode.core.model.constraints
    with constraints._compiling:  # as one that compiles for long
        waiting = [
            asyncio.create_task(split.client.generate("hello", max_tokens=2, constraint=Regex(f"a{{{number}}}")))
            for number in range(1, 13)
        ]
        await asyncio.sleep(0.1)
        plain = await asyncio.wait_for(split.client.generate("hello", temperature=0, max_tokens=2), 30)
        assert plain.usage.completion_tokens == 2
        assert not any(task.done() for task in waiting)
    assert len(await asyncio.gather(*waiting)) == 12
    await split.settled()
