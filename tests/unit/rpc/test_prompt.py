"""Prompts as both services check them: bounds, encodings, and what is refused with which numbers."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton.v1 import generation_pb2 as pb
from shared.errors import InvalidRequestError, Reason
from shared.rpc import prompt
from shared.rpc.options import MAX_EMBEDDINGS_BYTES, MAX_REQUEST_BYTES
from shared.rpc.prompt import check_prompt_len, embeddings_from_proto, write_embeddings

MAX_MODEL_LEN = 10
NAN, INF = 0x7FC00000, 0xFF800000


def message(values: npt.ArrayLike, num_tokens: int, dtype: str = "float32", item: str = "<f4") -> pb.Embeddings:
    return pb.Embeddings(data=np.array(values, item).tobytes(), num_tokens=num_tokens, dtype=dtype)


def read(embeddings: pb.Embeddings, hidden_size: int) -> npt.NDArray[np.float32]:
    return embeddings_from_proto(embeddings, hidden_size, MAX_MODEL_LEN)


def refusal(embeddings: pb.Embeddings, hidden_size: int) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        read(embeddings, hidden_size)
    return caught.value


def test_float32_is_taken_as_it_is_and_nobody_can_write_to_it() -> None:
    vectors = read(message([[1.0, 2.0, 3.0], [-4.0, 0.1, 3e38]], 2), 3)
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[1, 2, 3], [-4, float(np.float32(0.1)), float(np.float32(3e38))]]
    assert not vectors.flags.owndata, "the message's own bytes"
    assert not vectors.flags.writeable


@pytest.mark.parametrize(
    ("bits", "value"),
    [
        (0x0000, 0.0),
        (0x8000, -0.0),
        (0x3F80, 1.0),
        (0xC040, -3.0),
        (0x3EAB, 0.333984375),
        (0x7F7F, (2 - 2**-7) * 2.0**127),
        (0x0001, 2.0**-133),
    ],
)
def test_bfloat16_is_widened_exactly(bits: int, value: float) -> None:
    (vector,) = read(message([bits, 0x3F80], 1, "bfloat16", "<u2"), 2)
    assert vector.tolist() == [value, 1.0]
    assert np.signbit(vector[0]) == np.signbit(value)
    assert not vector.flags.writeable


def test_bfloat16_is_widened_as_torch_does() -> None:
    every = np.arange(2**16, dtype=np.uint16)
    finite = every[(every & 0x7F80) != 0x7F80].reshape(1, -1)
    widened = read(message(finite, 1, "bfloat16", "<u2"), finite.size)
    expected = torch.from_numpy(finite.astype(np.int16)).view(torch.bfloat16).float().numpy()
    assert np.array_equal(widened.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(
    ("values", "dtype", "num_bytes"),
    [
        ([[1.0, -2.0], [0.5, 3e38]], "float32", 16),
        ([[1.0, -2.0], [0.5, 0.0]], "bfloat16", 8),
        ([[1.0, 1 + 2**-7]], "bfloat16", 4),
        ([[1.0, 1 + 2**-8]], "float32", 8),
    ],
)
def test_vectors_go_on_in_the_fewest_bytes_that_hold_them(
    values: list[list[float]], dtype: str, num_bytes: int
) -> None:
    vectors = np.array(values, np.float32)
    written = pb.Embeddings()
    write_embeddings(written, vectors)
    assert (written.dtype, len(written.data), written.num_tokens) == (dtype, num_bytes, len(values))
    assert np.array_equal(read(written, 2), vectors)


finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(finite_floats, finite_floats, finite_floats), min_size=1, max_size=MAX_MODEL_LEN - 1))
def test_what_is_written_is_read(rows: list[tuple[float, ...]]) -> None:
    vectors = np.array(rows, np.float32)
    written = pb.Embeddings()
    write_embeddings(written, vectors)
    assert read(pb.Embeddings.FromString(written.SerializeToString()), 3).tobytes() == vectors.tobytes()


@pytest.mark.parametrize("dtype", ["", "float16", "FLOAT32", "bf16"])
def test_an_unknown_dtype_is_refused(dtype: str) -> None:
    error = refusal(message([[1, 2]], 1, dtype), 2)
    assert (error.reason, error.metadata) == (Reason.EMBEDDINGS_INVALID, {"field": "embeddings.dtype", "value": dtype})
    assert error.message == f"embeddings.dtype is {dtype!r}; needs one of float32, bfloat16"


@pytest.mark.parametrize(
    ("embeddings", "data_bytes", "needed_bytes"),
    [
        (message([1.0] * 5, 3), 20, 24),
        (message([1.0] * 7, 3), 28, 24),
        (message([1] * 5, 3, "bfloat16", "<u2"), 10, 12),
        (message([1.0] * 6, 3, "bfloat16"), 24, 12),
        (pb.Embeddings(num_tokens=3, dtype="float32"), 0, 24),
        (pb.Embeddings(num_tokens=3, dtype="float32", data=b"1" * 23), 23, 24),
    ],
)
def test_data_of_another_size_than_its_vectors_is_refused(
    embeddings: pb.Embeddings, data_bytes: int, needed_bytes: int
) -> None:
    error = refusal(embeddings, 2)
    assert error.reason is Reason.EMBEDDINGS_INVALID
    assert error.metadata == {
        "field": "embeddings.data",
        "data_bytes": str(data_bytes),
        "needed_bytes": str(needed_bytes),
        "num_tokens": "3",
        "hidden_size": "2",
        "dtype": embeddings.dtype,
    }
    assert error.message == (
        f"embeddings.data has {data_bytes} bytes; 3 vectors of 2 {embeddings.dtype} values (the model's hidden size) "
        f"have {needed_bytes}"
    )


@pytest.mark.parametrize(("bits", "value"), [(NAN, "nan"), (0x7F800001, "nan"), (INF, "-inf"), (0x7F800000, "inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_first_value_that_is_not_finite_is_named(bits: int, value: str, dtype: str) -> None:
    if dtype == "bfloat16":
        bits = (bits >> 16) | (0x40 if bits & 0xFFFF else 0)
    values = [0, 0, 0, 0, 0, bits, 0, NAN if dtype == "float32" else NAN >> 16, 0]
    error = refusal(message(values, 3, dtype, "<u4" if dtype == "float32" else "<u2"), 3)
    assert error.reason is Reason.EMBEDDINGS_INVALID
    assert error.metadata == {"field": "embeddings.data", "position": "1", "index": "2", "value": value}
    assert error.message == f"embeddings: value 2 of the vector at position 1 is {value}; needs finite values"


def test_the_length_is_checked_before_the_data() -> None:
    numbers: dict[str, Any] = {"field": "embeddings.num_tokens", "max_model_len": "10"}
    error = refusal(pb.Embeddings(num_tokens=2**32 - 1, dtype="int3", data=b"1"), 2)
    assert (error.reason, error.metadata) == (Reason.PROMPT_TOO_LONG, {**numbers, "prompt_tokens": "4294967295"})
    error = refusal(pb.Embeddings(), 2)
    assert (error.reason, error.metadata) == (Reason.PROMPT_EMPTY, {**numbers, "prompt_tokens": "0"})


def test_more_data_than_can_be_sent_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "MAX_EMBEDDINGS_BYTES", 16)
    assert read(message([1.0] * 4, 2), 2).shape == (2, 2)
    error = refusal(message([1.0] * 6, 3), 2)
    assert error.reason is Reason.EMBEDDINGS_INVALID
    assert error.metadata["max_bytes"] == "16"
    assert error.message == "embeddings.data has 24 bytes; at most 16 are taken"


def test_the_largest_vectors_and_all_else_fit_a_request() -> None:
    assert MAX_EMBEDDINGS_BYTES >= 8191 * 2048 * 4
    assert MAX_REQUEST_BYTES - MAX_EMBEDDINGS_BYTES == 2**20


@pytest.mark.parametrize("prompt_len", [1, 9])
def test_prompts_that_leave_room(prompt_len: int) -> None:
    check_prompt_len(prompt_len, MAX_MODEL_LEN)


@pytest.mark.parametrize(
    ("prompt_len", "reason", "text"),
    [
        (0, Reason.PROMPT_EMPTY, "the prompt is empty; needs at least 1 token"),
        (10, Reason.PROMPT_TOO_LONG, "the prompt has 10 tokens; the context of 10 leaves no room for an answer"),
        (11, Reason.PROMPT_TOO_LONG, "the prompt has 11 tokens; the context of 10 leaves no room for an answer"),
    ],
)
def test_prompts_of_no_length_that_can_be_answered(prompt_len: int, reason: Reason, text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_prompt_len(prompt_len, MAX_MODEL_LEN)
    assert (caught.value.reason, caught.value.message) == (reason, text)
