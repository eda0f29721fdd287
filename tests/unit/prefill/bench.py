"""A prefill scheduler whose step loop runs nothing, and short forms of what tests say to it and read from it."""

from prefill_service.exports import ExportTable
from prefill_service.job import HandleReady, JobMessage, PrefillJob, PrefillTask
from prefill_service.scheduler import PrefillScheduler
from shared.kv.allocator import BlockAllocator, BlockCounts
from shared.kv.pool import KvPool
from shared.kv.transports.base import KvTransport
from shared.sampling.params import SamplingParams
from shared.telemetry.metrics import ServiceMetrics
from shared.worker.ledger import BlockLedger
from shared.worker.step_loop import ChunkLanded, Retired, TokenSampled
from tests.unit.worker.recording_loop import RecordingLoop

MAX_MODEL_LEN = 64
VOCAB_SIZE = 100
GREEDY = SamplingParams(temperature=0)


class Bench:
    """The scheduler under test with a real pool and ledger."""

    def __init__(self, pool: KvPool, transports: dict[str, KvTransport], max_num_seqs: int, max_queue_len: int) -> None:
        self.pool = pool
        self.loop = RecordingLoop()
        self.exports = ExportTable(pool.epoch)
        self.ledger = BlockLedger(BlockAllocator(pool.num_blocks, pool.generations), pool.layout.block_size)
        self.metrics = ServiceMetrics("prefill")
        self.scheduler = PrefillScheduler(
            self.loop,
            self.ledger,
            pool,
            self.exports,
            transports,
            MAX_MODEL_LEN,
            VOCAB_SIZE,
            max_num_seqs,
            max_queue_len,
            self.metrics,
        )

    @property
    def counts(self) -> BlockCounts:
        return self.ledger.counts()

    def submit(self, request_id: str, prompt_len: int, priority: int = 0, first_needed_token: int = 0) -> PrefillJob:
        """Submits a prompt that shares no block with one of another id."""
        return self.scheduler.submit(task(request_id, prompt_len, priority, first_needed_token))

    def land(self, request_id: str, num_computed_tokens: int) -> None:
        self.scheduler.on_events([ChunkLanded(request_id, num_computed_tokens)])

    def finish(self, request_id: str, prompt_len: int, token_id: int = 42) -> None:
        """What the last step of a prompt publishes."""
        self.scheduler.on_events(
            [ChunkLanded(request_id, prompt_len), TokenSampled(request_id, token_id, None), Retired(request_id)]
        )

    def retire(self, request_id: str, error: str | None = None) -> None:
        self.scheduler.on_events([Retired(request_id, error)])


def task(request_id: str, prompt_len: int, priority: int = 0, first_needed_token: int = 0) -> PrefillTask:
    return PrefillTask(
        request_id=request_id,
        token_ids=(ord(request_id[0]) % VOCAB_SIZE, *range(prompt_len - 1)),
        first_needed_token=first_needed_token,
        transport="local",
        sampling=GREEDY,
        priority=priority,
    )


def taken(job: PrefillJob) -> list[JobMessage]:
    """All messages that wait in the outbox."""
    return [job.outbox.get_nowait() for _ in range(job.outbox.qsize())]


def handles(job: PrefillJob) -> list[HandleReady]:
    return [message for message in taken(job) if isinstance(message, HandleReady)]


def spans(ready: list[HandleReady]) -> list[tuple[int, int, bool, int | None]]:
    """(first token, end token, whether final, first generated token) of each handle."""
    return [
        (
            message.handle.first_token,
            message.handle.end_token,
            message.handle.is_final,
            message.first_tokens[0].token_id if message.first_tokens else None,
        )
        for message in ready
    ]
