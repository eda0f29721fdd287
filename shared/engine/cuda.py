"""What only a CUDA device does: recording graphs, and work that goes on after the call that started it.

The recorder has never run on a GPU (docs/captures.md); a test does so where there is one.
"""

import torch

from shared.engine.graphs import Recorder, Work


class CudaRecorder:
    """Records CUDA graphs in memory that all of them share: no two of them run at a time, and none has outputs in it.

    Warm-up and capture are on a side stream, as https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs says.
    The largest rung is to be recorded first, so that the others find room in its memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types for it
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Work) -> None:
        """As `Recorder.warm_up`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def record(self, work: Work) -> Work:
        """As `Recorder.record`; nothing is computed until the replay."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay


def recorder_for(device: torch.device) -> Recorder | None:
    """What records captures on `device`; None where they are buffers alone."""
    return CudaRecorder(device) if device.type == "cuda" else None


def wait_for(device: torch.device) -> None:
    """Returns once `device` has done all that it was given; a CPU has by then."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
