from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from baton.v1 import generation_pb2, kv_pb2
from shared.constraints.constraint import Constraint, ConstraintKind
from shared.errors import HandleError, InvalidRequestError, Reason
from shared.kv.handle import GrpcLocation, KvHandle, LocalLocation, Location, ShmLocation
from shared.rpc.convert import (
    handle_from_proto,
    handle_to_proto,
    identity_from_proto,
    identity_to_proto,
    logprobs_from_proto,
    logprobs_to_proto,
    sampling_from_proto,
    sampling_to_proto,
)
from shared.sampling.logprobs import TokenLogprob, TokenLogprobs
from shared.sampling.params import SamplingParams
from shared.worker.engine import Identity
from tests.unit.kv.support import LAYOUT

HANDLE = KvHandle(
    handle_id=bytes(range(16)),
    epoch="e",
    request_id="r",
    first_token=4,
    end_token=10,
    is_final=True,
    block_ids=(7, 3),
    block_generations=(1, 2**40),
    layout=LAYOUT,
    location=ShmLocation("/dev/shm/x"),
    checksum=0,
)
TEXT = r"""
    handle_id: "\000\001\002\003\004\005\006\007\010\011\012\013\014\015\016\017"
    epoch: "e" request_id: "r" first_token: 4 end_token: 10 is_final: true
    block_ids: [7, 3] block_generations: [1, 1099511627776]
    layout {name: "token_major" dtype: "float32" block_size: 4 num_layers: 2 num_kv_heads: 1 head_dim: 2}
    location {shm {path: "/dev/shm/x"}} checksum: 0
"""


def test_a_handle_as_a_message() -> None:
    message = text_format.Parse(TEXT, kv_pb2.KvHandle())
    assert handle_to_proto(HANDLE) == message
    assert handle_from_proto(message) == HANDLE


@pytest.mark.parametrize("location", [ShmLocation("/dev/shm/y"), GrpcLocation(), LocalLocation()])
@pytest.mark.parametrize("checksum", [None, 0, 2**32 - 1])
def test_a_handle_comes_back_as_it_went(location: Location, checksum: int | None) -> None:
    handle = replace(HANDLE, location=location, checksum=checksum)
    assert handle_from_proto(kv_pb2.KvHandle.FromString(handle_to_proto(handle).SerializeToString())) == handle


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        (kv_pb2.KvLocation(), "None"),
        (kv_pb2.KvLocation(transfer_engine=kv_pb2.TransferEngineLocation(engine="x")), "'transfer_engine'"),
    ],
)
def test_a_location_of_an_unknown_kind_is_refused(location: kv_pb2.KvLocation, kind: str) -> None:
    message = handle_to_proto(HANDLE)
    message.location.CopyFrom(location)
    with pytest.raises(HandleError, match=f"a location of kind {kind}, which is not served"):
        handle_from_proto(message)


def test_a_handle_that_contradicts_itself_is_refused() -> None:
    message = handle_to_proto(HANDLE)
    message.end_token = 20
    with pytest.raises(HandleError) as caught:
        handle_from_proto(message)
    assert caught.value.reason is Reason.HANDLE_MALFORMED


def test_an_empty_handle_is_refused() -> None:
    with pytest.raises(HandleError):
        handle_from_proto(kv_pb2.KvHandle())


def test_an_identity_comes_back_as_it_went() -> None:
    identity = Identity(
        protocol_version=1, model_fingerprint="f", layout=LAYOUT, serving_digest="d", serving_json='{"a": 1}'
    )
    assert identity_from_proto(identity_to_proto(identity)) == identity


def test_zeros_are_values_and_not_defaults() -> None:
    params = SamplingParams(temperature=0, top_k=0, top_p=1, min_p=0, seed=0)
    assert sampling_from_proto(sampling_to_proto(params), default_seed=9) == params
    message = generation_pb2.Sampling(top_p=0)
    with pytest.raises(InvalidRequestError):
        sampling_from_proto(message, default_seed=9)


def test_absent_fields_take_their_defaults() -> None:
    assert sampling_from_proto(generation_pb2.Sampling(), default_seed=9) == SamplingParams(
        temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=9
    )


def float32(low: float, high: float, **options: Any) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=32, **options)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CONSTRAINTS = st.one_of(
    st.none(),
    st.builds(Constraint, st.sampled_from([kind for kind in ConstraintKind if kind != "choices"]), TEXTS),
    st.builds(Constraint, st.just(ConstraintKind.CHOICES), choices=st.lists(TEXTS, max_size=3).map(tuple)),
)
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=float32(0, 100),
    top_k=st.integers(0, 2**32 - 1),
    top_p=float32(0, 1, exclude_min=True),
    min_p=float32(0, 1),
    repetition_penalty=float32(0, 100, exclude_min=True),
    frequency_penalty=float32(-2, 2),
    presence_penalty=float32(-2, 2),
    logit_bias=st.dictionaries(st.integers(0, 2**32 - 1), float32(-100, 100), max_size=5).map(
        lambda biases: tuple(sorted(biases.items()))
    ),
    seed=st.integers(0, 2**64 - 1),
    n=st.integers(1, 1024),
    constraint=CONSTRAINTS,
)


@given(SAMPLINGS)
def test_sampling_comes_back_as_it_went(params: SamplingParams) -> None:
    data = sampling_to_proto(params).SerializeToString()
    assert sampling_from_proto(generation_pb2.Sampling.FromString(data), default_seed=1) == params


LOGPROBS = st.builds(TokenLogprob, st.integers(0, 2**32 - 1), float32(-1000, 0), st.integers(1, 2**32 - 1))


@given(st.builds(TokenLogprobs, LOGPROBS, st.lists(LOGPROBS, max_size=3).map(tuple)))
def test_log_probabilities_come_back_as_they_went(logprobs: TokenLogprobs) -> None:
    data = logprobs_to_proto(logprobs).SerializeToString()
    assert logprobs_from_proto(generation_pb2.TokenLogprobs.FromString(data)) == logprobs


def test_log_probabilities_say_what_tokens_read_as_where_that_is_wanted() -> None:
    logprobs = TokenLogprobs(TokenLogprob(65, -1, 2), (TokenLogprob(66, -0.5, 1),))
    told = logprobs_to_proto(logprobs, chr)
    assert (told.token.text, told.alternatives[0].text) == ("A", "B")
    assert logprobs_to_proto(logprobs).token.text == ""
