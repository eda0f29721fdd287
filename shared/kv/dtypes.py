"""The element types of KV and their names in configs, handles and handshakes."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from shared.errors import ConfigError

TORCH_DTYPES: Mapping[str, torch.dtype] = MappingProxyType({"float32": torch.float32, "bfloat16": torch.bfloat16})


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype called `name`.

    Raises:
        ConfigError: `name` is not one of `TORCH_DTYPES`.
    """
    if name not in TORCH_DTYPES:
        raise ConfigError(
            f"dtype {name!r} is not served; use one of {', '.join(TORCH_DTYPES)}", metadata={"dtype": name}
        )
    return TORCH_DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype of `TORCH_DTYPES`."""
    return next(name for name, named in TORCH_DTYPES.items() if named == dtype)
