"""Each field of a request changes the answer, and is refused, as its row of the table says; none is ignored."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor import Descriptor

from baton.v1 import generation_pb2 as pb
from baton_client import Started
from tests.calls import Caller, bare, calling, error_details
from tests.integration.api.field_table import FIELDS, MAX_MODEL_LEN, MAX_NUM_SEQS, Refusal, Row, request_of
from tests.services import Split, greedy, running_split, serving_config
from tests.tiny_models import EOS_TOKEN_ID

SEEN = {name: row for name, row in FIELDS.items() if row.changes is not None}
REFUSED = [(name, refusal) for name, row in FIELDS.items() for refusal in row.refusals]


def leaves(message: Descriptor, prefix: str = "") -> Iterator[str]:
    """The paths of all fields that are no messages themselves."""
    for field in message.fields:
        inner = field.message_type
        if inner is None or inner.GetOptions().map_entry:
            yield prefix + field.name
        else:
            yield from leaves(inner, f"{prefix}{field.name}.")


def test_every_field_has_a_row() -> None:
    assert FIELDS.keys() == set(leaves(pb.GenerateRequest.DESCRIPTOR))


def test_every_row_says_what_it_lacks() -> None:
    for name, row in FIELDS.items():
        assert row.reason or (row.changes is not None and row.refusals), name


def test_both_calls_take_the_same_fields() -> None:
    one, other = (
        [(f.name, f.number, f.type, f.is_repeated) for f in message.DESCRIPTOR.fields]
        for message in (pb.GenerateRequest, pb.StreamGenerateRequest)
    )
    assert one == other


@pytest_asyncio.fixture(name="split", scope="module", loop_scope="module")
async def _split(tiny_llama_dir: Path) -> AsyncGenerator[Split]:
    async with running_split(serving_config(tiny_llama_dir)) as split:
        model = await split.client.get_model()
        assert model.max_model_len == MAX_MODEL_LEN
        yield split


@pytest_asyncio.fixture(name="caller", scope="module", loop_scope="module")
async def _caller(split: Split) -> AsyncGenerator[Caller]:
    async with calling(split.decode.port) as caller:
        yield caller


@pytest.mark.asyncio(loop_scope="module")
class TestEachField:
    @pytest.mark.parametrize("row", SEEN.values(), ids=SEEN.keys())
    async def test_changes_the_answer(self, caller: Caller, row: Row) -> None:
        assert row.changes is not None
        without, request = request_of(row.given), request_of(row.given, row.changes)
        await caller.generate(without)  # so that both its answer and that to the change could be from a warm cache
        plain, answer = await caller.generate(without), await caller.generate(request)
        assert row.is_seen(answer, plain)
        assert not row.is_seen(plain, plain), "what would be seen without the change proves nothing"
        if row.same_as is not None:
            other = await caller.generate(request_of(row.given, row.same_as))
            assert answer.completions == other.completions
        again, streamed = await caller.generate(request), await caller.stream(request)
        assert bare(streamed, request) == bare(again, request)

    @pytest.mark.parametrize(("name", "refusal"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
    async def test_is_refused(self, split: Split, caller: Caller, name: str, refusal: Refusal) -> None:
        request = request_of(FIELDS[name].given, refusal.changes)
        computed = split.metric("prefill", "prompt_tokens_total")
        for call in (caller.generate, caller.stream):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request)
            assert caught.value.code() is refusal.status, caught.value.details()
            info, bad_request = error_details(caught.value)
            assert (info.reason, info.metadata["field"]) == (refusal.reason, refusal.field)
            (violation,) = bad_request.field_violations
            assert (violation.field, violation.description) == (refusal.field, caught.value.details())
        assert split.metric("prefill", "prompt_tokens_total") == computed, "what is refused is never computed"

    async def test_the_served_model_by_its_name(self, split: Split, caller: Caller) -> None:
        request = request_of({"model": (await split.client.get_model()).model})
        assert (await caller.generate(request)).completions == (await caller.generate(request_of())).completions

    @pytest.mark.parametrize(
        ("pattern", "stopping", "expected"),
        [
            ("b{3}", {"ignore_eos": True}, "bbb"),
            ("b{3,5}", {"ignore_eos": True}, "bbbbb"),
            ("b{3}", {"min_tokens": 6}, "bbb"),
            ("b{3,9}", {"min_tokens": 6}, "bbbbbb"),
            ("b{3,9}", {}, "bbb"),
        ],
    )
    async def test_an_end_that_is_held_off_comes_where_a_constraint_allows_nothing_else(
        self, caller: Caller, pattern: str, stopping: dict[str, Any], expected: str
    ) -> None:
        """The end of sequence is the likeliest token wherever it may stand."""
        changes = {
            "sampling": {"regex": pattern, "logit_bias": {EOS_TOKEN_ID: 100.0}},
            "stopping": {"ignore_eos": False, "max_tokens": 16, **stopping},
        }
        for call in (caller.generate, caller.stream):
            (completion,) = (await call(request_of(changes))).completions
            assert (completion.text, completion.finish_reason) == (expected, pb.FINISH_REASON_STOP)
            assert list(completion.token_ids) == [*expected.encode(), EOS_TOKEN_ID]


async def test_a_higher_priority_goes_first(tiny_llama_dir: Path) -> None:
    """While one request has the only row, three wait: the highest of them is next, though it came last."""
    serving = serving_config(tiny_llama_dir, max_num_seqs={"prefill": MAX_NUM_SEQS, "decode": 1})
    done: list[int] = []

    async def ask(split: Split, priority: int) -> None:
        await split.client.generate([priority + 1], **greedy(max_tokens=2, priority=priority))
        done.append(priority)

    async with (
        asyncio.timeout(60),
        running_split(serving) as split,
        asyncio.TaskGroup() as group,
        split.client.stream("first", **greedy(max_tokens=900)) as running,
    ):
        assert isinstance(await anext(running), Started)
        for num_waiting, priority in enumerate((0, 0, 5), start=1):
            group.create_task(ask(split, priority))
            while split.metric("decode", "requests_waiting") < num_waiting:
                await asyncio.sleep(0.001)
        await running.aclose()
    assert done == [5, 0, 0]
