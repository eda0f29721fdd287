"""How long a replica's KV stays within reach."""

from pathlib import Path

from baton.v1 import prefill_pb2
from decode_service.kv_links import KvLinks
from shared.kv.pool import KvPool
from shared.kv.transports.shm import ShmTransport
from tests.unit.kv.support import LAYOUT


def offer(pool: KvPool) -> prefill_pb2.HandshakeResponse:
    assert pool.segment is not None
    shm = prefill_pb2.ShmOffer(path=str(pool.segment.path), proof=pool.segment.proof)
    return prefill_pb2.HandshakeResponse(epoch=pool.epoch, transports=["shm", "grpc"], shm=shm)


def test_a_mapping_lasts_until_the_last_fetch(tmp_path: Path) -> None:
    links = KvLinks(("shm",), tmp_path, LAYOUT, fetch_timeout_s=1.0)
    shm = links.transports["shm"]
    assert isinstance(shm, ShmTransport)
    with KvPool.shared(LAYOUT, 4, "e1", tmp_path) as pool:
        assert links.connect(offer(pool), None) == "shm"  # type: ignore[arg-type]  # no call is made
        with links.held("e1"):
            links.disconnect("e1")
            assert shm.is_attached("e1"), "the replica drains, and a fetch is under way"
        assert not shm.is_attached("e1")
    links.close()


def test_the_same_life_met_twice_is_mapped_once(tmp_path: Path) -> None:
    links = KvLinks(("shm",), tmp_path, LAYOUT, fetch_timeout_s=1.0)
    shm = links.transports["shm"]
    assert isinstance(shm, ShmTransport)
    with KvPool.shared(LAYOUT, 4, "e1", tmp_path) as pool:
        links.connect(offer(pool), None)  # type: ignore[arg-type]  # no call is made
        with links.held("e1"):
            links.disconnect("e1")
            links.connect(offer(pool), None)  # type: ignore[arg-type]  # no call is made
        assert shm.is_attached("e1")
        links.disconnect("e1")
        assert not shm.is_attached("e1")
    links.close()
