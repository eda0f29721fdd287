"""Read access to a GGUF file: metadata by key, tensors by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from shared.errors import ModelLoadError


class GgufFile:
    """One GGUF file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        """Maps `path`.

        Raises:
            ModelLoadError: it cannot be read, or is not a GGUF file.
        """
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise ModelLoadError(f"cannot read {path} as GGUF: {error}") from error
        self.path = path
        self.metadata: Mapping[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the model family, such as "llama"; Mistral is "llama" too."""
        return str(self.metadata["general.architecture"])

    def key(self, name: str) -> Any:  # noqa: ANN401  values are of many types
        """The value of a key under the architecture's own prefix.

        Raises:
            ModelLoadError: it is missing.
        """
        value = self.find(name)
        if value is None:
            raise ModelLoadError(f"{self.path}: metadata key {self.architecture}.{name} is missing")
        return value

    def find(self, name: str) -> Any | None:  # noqa: ANN401
        """As `key`, but None if it is missing."""
        return self.metadata.get(f"{self.architecture}.{name}")

    @property
    def tensor_names(self) -> list[str]:
        """Names of all tensors, in file order."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor in row-major order (GGUF lists the fastest dimension first)."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def read(self, name: str) -> torch.Tensor:
        """The tensor `name`, dequantized to float32.

        Raises:
            ModelLoadError: it is stored in a form that the gguf library cannot dequantize.
        """
        tensor = self._tensors[name]
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelLoadError(f"{self.path}: cannot dequantize {name}: {error}") from error
        return torch.from_numpy(np.array(values, dtype=np.float32)).view(self.shape(name))
