"""Prompts as both services check them; embeddings from messages and back.

Vectors travel as float32 or bfloat16 and are float32 everywhere else, whatever the model computes with: they begin its
residual stream, which is float32.
"""

import numpy as np
import numpy.typing as npt

from baton.v1 import generation_pb2
from shared.errors import InvalidRequestError, Reason
from shared.rpc.options import MAX_EMBEDDINGS_BYTES

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_BFLOAT16_SHIFT = 16
"""A bfloat16 is the upper half of the float32 of the same value."""


def check_prompt_len(prompt_len: int, max_model_len: int, field: str = "prompt") -> None:
    """Refuses a prompt that is empty or leaves no room for an answer.

    Args:
        prompt_len: tokens of the prompt.
        max_model_len: most tokens of a prompt and its completion together.
        field: path of the field that holds the prompt.

    Raises:
        InvalidRequestError: PROMPT_EMPTY or PROMPT_TOO_LONG; metadata: field, prompt_tokens, max_model_len.
    """
    numbers = {"field": field, "prompt_tokens": prompt_len, "max_model_len": max_model_len}
    if prompt_len == 0:
        raise InvalidRequestError("the prompt is empty; needs at least 1 token", Reason.PROMPT_EMPTY, numbers)
    if prompt_len >= max_model_len:
        raise InvalidRequestError(
            f"the prompt has {prompt_len} tokens; the context of {max_model_len} leaves no room for an answer",
            Reason.PROMPT_TOO_LONG,
            numbers,
        )


def embeddings_from_proto(
    message: generation_pb2.Embeddings, hidden_size: int, max_model_len: int
) -> npt.NDArray[np.float32]:
    """The vectors of a prompt, [num_tokens, hidden_size]; read-only. Takes milliseconds a megabyte.

    Raises:
        InvalidRequestError: PROMPT_EMPTY, PROMPT_TOO_LONG, or EMBEDDINGS_INVALID: a dtype that is none, data of another
            size than that of the vectors or more than can be sent on, or a value that is infinite or no number.
    """
    check_prompt_len(message.num_tokens, max_model_len, "embeddings.num_tokens")
    data = message.data  # each access copies
    _check_size(len(data), message, hidden_size)
    if message.dtype == "float32":
        values = np.frombuffer(data, "<f4")
    else:
        values = (np.frombuffer(data, "<u2").astype("<u4") << _BFLOAT16_SHIFT).view("<f4")
    values.flags.writeable = False
    vectors = values.reshape(message.num_tokens, hidden_size)
    _check_finite(vectors)
    return vectors


def write_embeddings(message: generation_pb2.Embeddings, vectors: npt.NDArray[np.float32]) -> None:
    """Fills an empty message with vectors [num_tokens, hidden_size].

    They go as bfloat16 where that loses nothing, so that what came as bfloat16 goes on in as many bytes.
    """
    bits = vectors.view("<u4")
    message.num_tokens = len(vectors)
    if (bits & 0xFFFF).any():
        message.dtype, message.data = "float32", vectors.tobytes()
    else:
        message.dtype, message.data = "bfloat16", (bits >> _BFLOAT16_SHIFT).astype("<u2").tobytes()


def _check_size(num_bytes: int, message: generation_pb2.Embeddings, hidden_size: int) -> None:
    item_bytes = _ITEM_BYTES.get(message.dtype)
    if item_bytes is None:
        raise InvalidRequestError(
            f"embeddings.dtype is {message.dtype!r}; needs one of {', '.join(_ITEM_BYTES)}",
            Reason.EMBEDDINGS_INVALID,
            {"field": "embeddings.dtype", "value": message.dtype},
        )
    needed_bytes = message.num_tokens * hidden_size * item_bytes
    numbers = {
        "field": "embeddings.data",
        "data_bytes": num_bytes,
        "needed_bytes": needed_bytes,
        "num_tokens": message.num_tokens,
        "hidden_size": hidden_size,
        "dtype": message.dtype,
    }
    if num_bytes != needed_bytes:
        raise InvalidRequestError(
            f"embeddings.data has {num_bytes} bytes; {message.num_tokens} vectors of {hidden_size} {message.dtype} "
            f"values (the model's hidden size) have {needed_bytes}",
            Reason.EMBEDDINGS_INVALID,
            numbers,
        )
    if num_bytes > MAX_EMBEDDINGS_BYTES:
        raise InvalidRequestError(
            f"embeddings.data has {num_bytes} bytes; at most {MAX_EMBEDDINGS_BYTES} are taken",
            Reason.EMBEDDINGS_INVALID,
            {**numbers, "max_bytes": MAX_EMBEDDINGS_BYTES},
        )


def _check_finite(vectors: npt.NDArray[np.float32]) -> None:
    is_finite = np.isfinite(vectors)
    if is_finite.all():
        return
    position, index = divmod(int(is_finite.argmin()), vectors.shape[1])
    value = float(vectors[position, index])
    raise InvalidRequestError(
        f"embeddings: value {index} of the vector at position {position} is {value}; needs finite values",
        Reason.EMBEDDINGS_INVALID,
        {"field": "embeddings.data", "position": position, "index": index, "value": value},
    )
