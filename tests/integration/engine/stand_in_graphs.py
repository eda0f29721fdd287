"""A recorder that needs no GPU: what it records is done again on the same memory, as a CUDA graph would."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class StandInRecorder:
    """Does nothing when it records, as CUDA does, and notes what was asked of it.

    Attributes:
        log: "warm up", "record <graph>" and "replay <graph>", in order; graphs are numbered.
    """

    log: list[str] = field(default_factory=list)
    _num_graphs: int = 0

    def warm_up(self, work: Callable[[], None]) -> None:
        self.log.append("warm up")
        work()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        graph, self._num_graphs = self._num_graphs, self._num_graphs + 1
        self.log.append(f"record {graph}")

        def replay() -> None:
            self.log.append(f"replay {graph}")
            work()

        return replay
