"""Reads the tensors of a model directory."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from shared.engine.models.files import weight_files
from shared.errors import ModelLoadError


class WeightReader:
    """Hands out each tensor by name once, and knows at the end which ones nobody asked for."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self._handle_by_name = {name: handle for handle in handles for name in handle.keys()}  # noqa: SIM118  not a dict
        self._untaken = set(self._handle_by_name)

    def take(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """The tensor `name`, as it is stored.

        Raises:
            ModelLoadError: it is missing, or its shape is not `shape`.
        """
        handle = self._handle_by_name.get(name)
        if handle is None:
            raise ModelLoadError(f"the weights hold no tensor {name!r}")
        tensor: torch.Tensor = handle.get_tensor(name)
        if tuple(tensor.shape) != tuple(shape):
            raise ModelLoadError(f"tensor {name!r} is {list(tensor.shape)}; config.json makes it {list(shape)}")
        self._untaken.discard(name)
        return tensor

    def untaken(self) -> list[str]:
        """Names that were not taken, in order."""
        return sorted(self._untaken)


@contextmanager
def open_weights(model_dir: Path, device: str = "cpu") -> Iterator[WeightReader]:
    """Opens all weight files of `model_dir` for as long as the context lasts; tensors are read into `device`.

    Raises:
        ModelLoadError: no weights there, or a file that is not safetensors.
    """
    with ExitStack() as stack:
        try:
            handles = [
                stack.enter_context(safe_open(path, framework="pt", device=device)) for path in weight_files(model_dir)
            ]
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"cannot read the weights in {model_dir}: {error}") from error
        yield WeightReader(handles)
