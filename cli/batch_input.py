"""Lines of a batch's input file to requests.

A line is a `baton.v1.GenerateRequest` as JSON, with three shorter spellings: `token_ids` and `chat` may be plain lists,
and `embeddings` a list of vectors.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.json_format import ParseDict, ParseError

from baton.v1 import generation_pb2 as pb
from decode_service.request import GenerationRequest
from decode_service.translate import ServedModel, request_from_proto
from shared.errors import InvalidRequestError, Reason
from shared.rpc.options import MAX_REQUEST_BYTES

MAX_LINE_BYTES = 2 * MAX_REQUEST_BYTES
"""Holds a request of the largest size that the services take, whose bytes are base64 here."""


@dataclass(frozen=True)
class InputLine:
    """A line that is not blank.

    Attributes:
        number: from 1, blank lines counted.
        data: without its end; None for a line that is too long to be read.
    """

    number: int
    data: bytes | None


def read_lines(stream: BinaryIO) -> Iterator[InputLine]:
    """The lines of a file that are not blank."""
    number = 0
    while data := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(data) > MAX_LINE_BYTES and not data.endswith(b"\n"):
            _skip_rest(stream)
            yield InputLine(number, None)
        elif data := data.strip():
            yield InputLine(number, data)


def _skip_rest(stream: BinaryIO) -> None:
    while (data := stream.readline(MAX_LINE_BYTES)) and not data.endswith(b"\n"):
        pass


@dataclass(frozen=True)
class LineRequest:
    """A line's request, and whether its answer is to have token ids."""

    line: InputLine
    request: GenerationRequest
    wants_token_ids: bool


def parse_request(line: InputLine, model: ServedModel) -> LineRequest:
    """Reads and validates the request of a line; one without an id is called `line-<number>`.

    Raises:
        InvalidRequestError: the line is no request, or a field is wrong.
    """
    message = pb.GenerateRequest()
    try:
        ParseDict(_plain_spelling(_read_object(line)), message)
    except (ParseError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _malformed(" ".join(str(error).split())) from error
    message.request_id = message.request_id or _default_id(line)
    return LineRequest(line, request_from_proto(message, model), message.output.token_ids)


def request_id_of(line: InputLine) -> str:
    """The id that a line gives to its request, if so much of it can be read; else its default."""
    try:
        fields = _read_object(line)
    except InvalidRequestError:
        return _default_id(line)
    given = fields.get("request_id") or fields.get("requestId")
    return given if isinstance(given, str) else _default_id(line)


def _default_id(line: InputLine) -> str:
    return f"line-{line.number}"


def _read_object(line: InputLine) -> dict[str, Any]:
    if line.data is None:
        raise _malformed(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        value = json.loads(line.data.decode("utf-8"))
        if b"\\u" in line.data:  # the one way to write half a character
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed(f"the line is not UTF-8: {error}") from error
    except UnicodeEncodeError as error:
        raise _malformed(f"the line has half a character, as \\ud800 is: {error.reason}") from error
    except (ValueError, RecursionError) as error:
        raise _malformed(f"the line is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _malformed(f"the line holds {type(value).__name__}, not an object")
    return value


def _plain_spelling(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with the shorter spellings written out."""
    spelled = dict(fields)
    for name in ("token_ids", "tokenIds"):
        if isinstance(spelled.get(name), list):
            spelled[name] = {"ids": spelled[name]}
    if isinstance(spelled.get("chat"), list):
        spelled["chat"] = {"messages": spelled["chat"]}
    if isinstance(spelled.get("embeddings"), list):
        spelled["embeddings"] = _embeddings(spelled["embeddings"])
    return spelled


def _embeddings(vectors: list[Any]) -> dict[str, Any]:
    try:
        values = np.asarray(vectors)
    except ValueError:
        raise _malformed("embeddings: found vectors of different lengths; needs as many numbers in each") from None
    if values.ndim != 2 or values.dtype.kind not in "iuf":
        raise _malformed("embeddings: needs a list of lists of numbers")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused by place and value
        data = base64.b64encode(values.astype("<f4").tobytes()).decode()
    return {"data": data, "num_tokens": len(values), "dtype": "float32"}


def _malformed(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, Reason.MALFORMED_MESSAGE)
