"""Hashes of blocks that hold vectors: never those of token ids, nor of other vectors."""

import hashlib
import struct

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from shared.kv.prefix_cache import block_hashes

HIDDEN_SIZE = 2

Content = tuple[float, float] | int
"""What stands at one position: a vector, or a token id."""


def matrix(rows: list[tuple[float, float]]) -> npt.NDArray[np.float32] | None:
    return np.array(rows, np.float32).reshape(-1, HIDDEN_SIZE) if rows else None


def hashes_of(
    content: list[Content], block_size: int, placeholder: int = 0, known: list[bytes] | None = None
) -> list[bytes]:
    rows = [position for position in content if isinstance(position, tuple)]
    token_ids = [placeholder if isinstance(position, tuple) else position for position in content]
    return block_hashes(token_ids, "salt", block_size, matrix(rows), known or ())


# Few values, so that equal prefixes and near misses are common; 0.0 has the bytes of the id 0.
vectors = st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0]))
contents = st.builds(
    lambda prompt, completion: [*prompt, *completion],
    st.lists(vectors, max_size=5),
    st.lists(st.sampled_from([0, 1, 0x3F800000]), max_size=5),
)
block_sizes = st.integers(1, 4)


def test_a_block_of_vectors_is_hashed_over_number_size_and_bytes() -> None:
    root = hashlib.sha256(b"salt").digest()
    first = hashlib.sha256(root + b"vectors" + struct.pack("=2I", 2, 2) + struct.pack("<4f", 1, -2, 0.5, 0)).digest()
    mixed = hashlib.sha256(
        first + b"vectors" + struct.pack("=2I", 1, 2) + struct.pack("<2f", 3, 4) + struct.pack("=I", 7)
    )
    last = hashlib.sha256(mixed.digest() + struct.pack("=2I", 8, 9))
    content: list[Content] = [(1, -2), (0.5, 0), (3, 4), 7, 8, 9, 10]
    assert hashes_of(content, 2) == [first, mixed.digest(), last.digest()]


@given(contents, contents, block_sizes)
def test_hashes_are_equal_just_where_all_before_is(
    first: list[Content], second: list[Content], block_size: int
) -> None:
    for index, (one, other) in enumerate(
        zip(hashes_of(first, block_size), hashes_of(second, block_size), strict=False)
    ):
        end = (index + 1) * block_size
        assert (one == other) == (first[:end] == second[:end] and kinds(first[:end]) == kinds(second[:end]))


def kinds(content: list[Content]) -> list[type]:
    return [type(position) for position in content]


@given(contents, block_sizes, st.integers(0, 2**32 - 1))
def test_what_stands_in_the_place_of_ids_does_not_matter(
    content: list[Content], block_size: int, token_id: int
) -> None:
    assert hashes_of(content, block_size, placeholder=token_id) == hashes_of(content, block_size)


@given(contents, block_sizes, st.integers(0, 10))
def test_hashes_go_on_from_known_ones(content: list[Content], block_size: int, num_known: int) -> None:
    hashes = hashes_of(content, block_size)
    assert hashes_of(content, block_size, known=hashes[:num_known]) == hashes
    assert hashes_of(content[:block_size], block_size, known=hashes) == hashes[:1]


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=2, max_size=6))
def test_a_prompt_of_vectors_is_none_of_ids(rows: list[tuple[float, float]]) -> None:
    """Neither of its placeholders nor of its own bytes read as ids."""
    content = matrix(rows)
    assert content is not None
    found = block_hashes([0] * len(rows), "", 1, content)
    assert not set(found) & set(block_hashes([0] * len(rows), "", 1))
    as_ids = content.view(np.uint32).ravel().tolist()
    for block_size in range(1, len(as_ids) + 1):
        assert not set(found) & set(block_hashes(as_ids, "", block_size))


def test_vectors_of_another_size_or_memory_order() -> None:
    wide = np.arange(12, dtype=np.float32).reshape(2, 6)
    assert block_hashes([0, 0], "", 2, wide) != block_hashes([0, 0], "", 2, wide.reshape(2, 6)[:, ::-1])
    assert block_hashes([0, 0], "", 2, np.asfortranarray(wide)) == block_hashes([0, 0], "", 2, wide)
    assert block_hashes([0] * 2, "", 2, wide) != block_hashes([0] * 2, "", 2, wide.reshape(4, 3)[:2])


def test_salts_part_equal_vectors() -> None:
    rows = np.ones((2, 2), np.float32)
    assert block_hashes([0, 0], "a", 2, rows) != block_hashes([0, 0], "b", 2, rows)
