"""A replica set whose replicas are ready, or not, because a test says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from decode_service.kv_links import KvLinks
from decode_service.replicas import PrefillReplica, ReplicaSet, ReplicaState, Session
from shared.worker.engine import Identity
from tests.unit.decode.scripted import EPOCH, RecordingTransport
from tests.unit.kv.support import LAYOUT

IDENTITY = Identity(protocol_version=1, model_fingerprint="f", layout=LAYOUT, serving_digest="d", serving_json="{}")


@contextmanager
def open_links(transport: RecordingTransport) -> Iterator[KvLinks]:
    """Links to the scripted replicas, with one transport more, which copies nothing."""
    links = KvLinks(("grpc",), Path("/nowhere"), LAYOUT, fetch_timeout_s=10.0)
    links.transports[transport.name] = transport
    offer = prefill_pb2.HandshakeResponse(epoch=EPOCH, transports=["grpc"])
    links.connect(offer, cast("prefill_pb2_grpc.PrefillServiceAsyncStub", None))
    yield links
    links.close()


def replicas_of(replica_set: ReplicaSet) -> list[PrefillReplica]:
    return replica_set._replicas


def make_ready(
    replica: PrefillReplica,
    stub: prefill_pb2_grpc.PrefillServiceAsyncStub | None = None,
    num_waiting_tokens: int = 0,
) -> Session:
    """As after a handshake and a load report."""
    session = Session(EPOCH, RecordingTransport.name, stub)  # type: ignore[arg-type]  # None where nothing is called
    replica.session, replica.state = session, ReplicaState.READY
    replica._reported_tokens, replica._sent_tokens = num_waiting_tokens, 0
    return session
