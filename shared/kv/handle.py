"""A typed reference to the KV of one chunk of one request. Knows no grpc."""

from dataclasses import dataclass

from shared.errors import HandleError, Reason
from shared.kv.layout import KvLayout

HANDLE_ID_LEN = 16


@dataclass(frozen=True)
class ShmLocation:
    """The blocks lie in the tmpfs file at `path`."""

    path: str


@dataclass(frozen=True)
class GrpcLocation:
    """The blocks are fetched with PrefillService.FetchKv."""


@dataclass(frozen=True)
class LocalLocation:
    """Both services live in one process; the pool is found by the handle's epoch."""


Location = ShmLocation | GrpcLocation | LocalLocation


@dataclass(frozen=True)
class KvHandle:
    """KV of the prompt tokens [first_token, end_token), valid while the Prefill stream that sent it lives.

    Raises:
        HandleError: the fields contradict each other (MALFORMED_MESSAGE), name the scratch block
            (HANDLE_OUT_OF_RANGE) or name a block twice (HANDLE_REPEATED).
    """

    handle_id: bytes
    """`HANDLE_ID_LEN` random bytes."""
    epoch: str
    """The process that issued it."""
    request_id: str
    first_token: int
    """A multiple of the block size."""
    end_token: int
    is_final: bool
    """No handle of this request follows."""
    block_ids: tuple[int, ...]
    """Blocks of the issuer's pool, in token order."""
    block_generations: tuple[int, ...]
    """Generation of each block when it was exported."""
    layout: KvLayout
    location: Location
    checksum: int | None = None
    """CRC-32 of the blocks' bytes in order; None where nothing can alter them on the way."""

    def __post_init__(self) -> None:
        if len(self.handle_id) != HANDLE_ID_LEN:
            raise self._malformed(f"handle_id has {len(self.handle_id)} bytes, not {HANDLE_ID_LEN}")
        if self.layout.block_size <= 0:
            raise self._malformed(f"block_size is {self.layout.block_size}")
        if not 0 <= self.first_token < self.end_token or self.first_token % self.layout.block_size:
            raise self._malformed(
                f"tokens [{self.first_token}, {self.end_token}) do not start a block and end after it"
            )
        if self.num_blocks != len(self.block_ids) or self.num_blocks != len(self.block_generations):
            raise self._malformed(
                f"{self.end_token - self.first_token} tokens need {self.num_blocks} blocks, but there are "
                f"{len(self.block_ids)} block ids and {len(self.block_generations)} generations"
            )
        if min(self.block_ids) < 1:
            raise self._refused(f"block id {min(self.block_ids)}", Reason.HANDLE_OUT_OF_RANGE)
        if len(set(self.block_ids)) != len(self.block_ids):
            raise self._refused("a block id stands twice", Reason.HANDLE_REPEATED)

    @property
    def num_blocks(self) -> int:
        """Blocks that the tokens take, the last one perhaps in part."""
        return -(-(self.end_token - self.first_token) // self.layout.block_size)

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks, whole even where the last one is filled in part."""
        return self.num_blocks * self.layout.block_bytes

    def _malformed(self, detail: str) -> HandleError:
        return self._refused(detail, Reason.HANDLE_MALFORMED)

    def _refused(self, detail: str, reason: Reason) -> HandleError:
        return HandleError(
            f"KV handle {self.handle_id.hex()} of request {self.request_id!r} is refused: {detail}",
            reason,
            {"handle_id": self.handle_id.hex(), "request_id": self.request_id},
        )
