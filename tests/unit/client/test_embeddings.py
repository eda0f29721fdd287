"""Prompts of vectors: from arrays, and into messages."""

import array
import struct
from typing import Any

import numpy as np
import pytest
import torch

from baton.v1 import generation_pb2 as pb
from baton_client import Embeddings, InvalidArgument, ModelInfo
from baton_client.convert import fill_prompt, fill_request, model_from_message
from baton_client.targets import MAX_EMBEDDINGS_BYTES, MAX_MESSAGE_BYTES, channel_options

ROWS = [[1.0, -2.0, 0.5], [0.0, 3.0, 0.1]]
DATA = struct.pack("<6f", 1, -2, 0.5, 0, 3, 0.1)


def request(embeddings: Embeddings) -> pb.GenerateRequest:
    return fill_request(pb.GenerateRequest(), embeddings, {})


ARRAYS: dict[str, Any] = {
    "numpy": np.array(ROWS, np.float32),
    "little-endian by name": np.array(ROWS, "<f4"),
    "columns first": np.asfortranarray(np.array(ROWS, np.float32)),
    "every second": np.repeat(np.array(ROWS, np.float32), 2, axis=0)[::2],
    "transposed": np.array(ROWS, np.float32).T.copy().T,
    "torch": torch.tensor(ROWS).numpy(),
    "a view of bytes": memoryview(DATA).cast("f", [2, 3]),
}


@pytest.mark.parametrize("rows", ARRAYS.values(), ids=ARRAYS)
def test_an_array_of_two_dimensions(rows: Any) -> None:
    assert Embeddings.from_array(rows) == Embeddings(DATA, num_tokens=2, dtype="float32")


def test_an_array_without_rows() -> None:
    assert Embeddings.from_array(np.zeros((0, 3), np.float32)) == Embeddings(b"", 0)


REFUSED: dict[str, tuple[Any, str]] = {
    "lists": (ROWS, "list has no buffer; needs a float32 array of two dimensions, such as NumPy's"),
    "nothing": (None, "NoneType has no buffer"),
    "text": ("abc", "str has no buffer"),
    "a tensor": (torch.tensor(ROWS), "Tensor has no buffer"),
    "bytes": (DATA, r"1 dimensions and format 'B'; needs 2, and float32 \('f'\)"),
    "one dimension": (array.array("f", [1, 2]), "1 dimensions and format 'f'"),
    "three dimensions": (np.zeros((1, 2, 3), np.float32), "3 dimensions and format 'f'"),
    "a number": (np.float32(1), "0 dimensions and format 'f'"),
    "float64": (np.array(ROWS), "2 dimensions and format 'd'"),
    "float16": (np.array(ROWS, np.float16), "2 dimensions and format 'e'"),
    "integers": (np.array(ROWS, np.int32), "2 dimensions and format 'i'"),
    "big-endian": (np.array(ROWS, ">f4"), "2 dimensions and format '>f'"),
    "objects": (np.array(ROWS, object), "2 dimensions and format 'O'"),
}


@pytest.mark.parametrize(("rows", "message"), REFUSED.values(), ids=REFUSED)
def test_anything_else_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Embeddings.from_array(rows)


def test_the_message_has_what_was_given() -> None:
    assert request(Embeddings(DATA, 2)) == pb.GenerateRequest(
        embeddings=pb.Embeddings(data=DATA, num_tokens=2, dtype="float32")
    )
    assert request(Embeddings(b"1234", 1, "bfloat16")).embeddings == pb.Embeddings(
        data=b"1234", num_tokens=1, dtype="bfloat16"
    )


def test_an_empty_prompt_of_vectors_is_still_one() -> None:
    assert request(Embeddings(b"", 0, "")).WhichOneof("prompt") == "embeddings"


@pytest.mark.parametrize(
    ("embeddings", "field"),
    [
        (Embeddings(DATA, -1), "embeddings.num_tokens"),
        (Embeddings(DATA, 2**32), "embeddings.num_tokens"),
        (Embeddings(DATA, 2, 4), "embeddings.dtype"),  # type: ignore[arg-type]
        (Embeddings("abc", 2), "embeddings.data"),  # type: ignore[arg-type]
        (Embeddings(bytearray(DATA), 2), "embeddings.data"),  # type: ignore[arg-type]
        (Embeddings(memoryview(DATA), 2), "embeddings.data"),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_fit_a_field_is_refused(embeddings: Embeddings, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        request(embeddings)
    assert (caught.value.reason, caught.value.metadata["field"]) == ("MALFORMED_MESSAGE", field)


def test_more_than_a_server_takes_is_refused_before_it_is_sent() -> None:
    request(Embeddings(bytes(MAX_EMBEDDINGS_BYTES), 1))
    with pytest.raises(InvalidArgument, match="has 67108865 bytes; at most 67108864 can be sent") as caught:
        request(Embeddings(bytes(MAX_EMBEDDINGS_BYTES + 1), 1))
    assert caught.value.metadata == {"field": "embeddings.data", "value": "67108865"}


def test_the_largest_prompt_fits_a_message() -> None:
    largest = request(Embeddings(bytes(MAX_EMBEDDINGS_BYTES), 2**32 - 1, "bfloat16"))
    assert largest.ByteSize() < MAX_MESSAGE_BYTES
    assert ("grpc.max_send_message_length", MAX_MESSAGE_BYTES) in channel_options("localhost:1")


def test_vectors_are_not_printed() -> None:
    assert repr(Embeddings(DATA, 2)) == "Embeddings(num_tokens=2, dtype='float32')"


def test_vectors_cannot_be_tokenized() -> None:
    with pytest.raises(TypeError, match="tokenize takes text or chat messages"):
        fill_prompt(pb.TokenizeRequest(), Embeddings(DATA, 2))


def test_the_model_says_how_long_vectors_are() -> None:
    model = model_from_message(pb.GetModelResponse(model="m", hidden_size=576, dtype="float32"))
    assert model == ModelInfo("m", "", 0, 0, (), False, "float32", 576)
