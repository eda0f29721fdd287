"""A step loop that runs nothing: it keeps what it was told, and tests publish what a step would have done."""

from shared.worker.sequence import Sequence
from shared.worker.step_loop import StepLoop


class RecordingLoop(StepLoop):
    """Keeps submissions and cancellations, in order."""

    def __init__(self) -> None:
        self.submitted: list[Sequence] = []
        self.cancelled: list[str] = []

    def submit(self, sequence: Sequence) -> None:
        self.submitted.append(sequence)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    @property
    def submitted_ids(self) -> list[str]:
        return [sequence.request_id for sequence in self.submitted]
