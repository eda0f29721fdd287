from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shared.kv.pool import KvPool
from shared.text.tokenizer import Tokenizer
from tests.unit.decode.generating import Desk
from tests.unit.kv.support import LAYOUT


@pytest.fixture(scope="session")
def tokenizer(tiny_llama_dir: Path) -> Tokenizer:
    """Token ids 0 to 255 are the bytes."""
    return Tokenizer.from_directory(tiny_llama_dir)


@pytest.fixture
def desk(tokenizer: Tokenizer) -> Iterator[Callable[..., Desk]]:
    """Makes a generator; its pool is closed afterwards."""
    with ExitStack() as stack:

        def make(**options: Any) -> Desk:
            return Desk(stack.enter_context(KvPool.anonymous(LAYOUT, 9, "here")), tokenizer, **options)

        yield make
