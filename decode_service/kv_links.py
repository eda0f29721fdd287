"""The ways KV comes from each prefill replica: one transport object a kind, attached to replicas by epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import structlog

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from shared.errors import KvTransferError
from shared.kv.handle import KvHandle
from shared.kv.layout import KvLayout
from shared.kv.transports.base import KvTransport
from shared.kv.transports.grpc import GrpcTransport
from shared.kv.transports.local import LocalTransport, is_registered
from shared.kv.transports.negotiate import negotiate
from shared.kv.transports.shm import ShmTransport

log = structlog.get_logger()


class KvLinks:
    """Transports by name, and what each needs to reach the replicas that are connected.

    Args:
        wanted: names of transports, best first.
        shm_dir: where segments of replicas may lie.
        layout: of the KV that is fetched.
        fetch_timeout_s: longest that a FetchKv call may take.
    """

    def __init__(self, wanted: tuple[str, ...], shm_dir: Path, layout: KvLayout, fetch_timeout_s: float) -> None:
        self._wanted = wanted
        self._layout = layout
        self._fetch_timeout_s = fetch_timeout_s
        self._num_users: Counter[str] = Counter()
        self._stubs: dict[str, prefill_pb2_grpc.PrefillServiceAsyncStub] = {}
        self._shm = ShmTransport(shm_dir)
        self.transports: dict[str, KvTransport] = {
            "shm": self._shm,
            "grpc": GrpcTransport(self._open_fetch),
            "local": LocalTransport(),
        }

    def connect(self, offer: prefill_pb2.HandshakeResponse, stub: prefill_pb2_grpc.PrefillServiceAsyncStub) -> str:
        """Chooses the transport for one life of a replica, and attaches to it; pair with `disconnect`.

        Raises:
            HandshakeError: there is no transport that both sides have and that works.
        """
        prove: Mapping[str, Callable[[prefill_pb2.HandshakeResponse], bool]] = {
            "shm": self._prove_shm,
            "local": lambda offered: is_registered(offered.epoch),
            "grpc": lambda _: True,
        }
        name = negotiate(self._wanted, offer.transports, lambda kind: prove[kind](offer))
        self._stubs[offer.epoch] = stub
        self._num_users[offer.epoch] += 1
        return name

    def disconnect(self, epoch: str) -> None:
        """Lets go of a replica's life that takes no more prompts, once the last fetch from it is done."""
        self._num_users[epoch] -= 1
        if not self._num_users[epoch]:
            del self._num_users[epoch]
            self._stubs.pop(epoch, None)
            self._shm.detach(epoch)

    @contextmanager
    def held(self, epoch: str) -> Iterator[None]:
        """Keeps a connected replica's KV within reach, also while it drains."""
        self._num_users[epoch] += 1
        try:
            yield
        finally:
            self.disconnect(epoch)

    def close(self) -> None:
        """Closes all transports."""
        for transport in self.transports.values():
            transport.close()

    def _prove_shm(self, offer: prefill_pb2.HandshakeResponse) -> bool:
        if not offer.HasField("shm"):
            return False
        if self._shm.is_attached(offer.epoch):
            return True
        try:
            self._shm.attach(offer.shm.path, self._layout, offer.epoch, offer.shm.proof)
        except KvTransferError as error:
            log.info("shm_not_shared", epoch=offer.epoch, reason=error.message)
            return False
        return True

    async def _open_fetch(self, handle: KvHandle) -> AsyncGenerator[tuple[int, bytes], None]:
        stub = self._stubs.get(handle.epoch)
        if stub is None:
            raise KvTransferError(f"the replica of epoch {handle.epoch} is gone")
        request = prefill_pb2.FetchKvRequest(
            handle_id=handle.handle_id, epoch=handle.epoch, request_id=handle.request_id
        )
        call = stub.FetchKv(request, timeout=self._fetch_timeout_s)
        try:
            async for piece in call:
                yield piece.offset, piece.data
        finally:
            call.cancel()
