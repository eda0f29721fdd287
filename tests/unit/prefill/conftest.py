from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from shared.kv.pool import KvPool
from shared.kv.transports.base import KvTransport
from shared.kv.transports.grpc import GrpcTransport
from shared.kv.transports.local import LocalTransport
from tests.unit.kv.support import LAYOUT
from tests.unit.prefill.bench import Bench


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    """Makes a scheduler over a pool of 8 blocks of 4 tokens; the pool is closed afterwards."""
    with ExitStack() as stack:

        def make(max_num_seqs: int = 4, max_queue_len: int = 4) -> Bench:
            pool = stack.enter_context(KvPool.anonymous(LAYOUT, 9, "now"))
            transports: dict[str, KvTransport] = {"grpc": GrpcTransport(pool=pool), "local": LocalTransport(pool)}
            for transport in transports.values():
                stack.callback(transport.close)
            return Bench(pool, transports, max_num_seqs, max_queue_len)

        yield make
