"""Static memory: allocated once and touched at once, and counted storage by storage."""

from collections.abc import Iterable, Iterator, Mapping

import torch

_PACKAGE = f"{__name__.partition('.')[0]}."


def zeros(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> torch.Tensor:
    """Zeros of which every page has been written to, so that no step pays for page faults."""
    return torch.empty(shape, dtype=dtype, device=device).zero_()


def storage_bytes(*owners: object, besides: Iterable[torch.Tensor] = ()) -> int:
    """Bytes of the memory that tensors in `owners` lie in, each storage once.

    Args:
        *owners: tensors, containers of them, and objects of this package whose attributes are any of these.
        besides: tensors whose storages are somebody else's.
    """
    counted = {tensor.untyped_storage() for tensor in _tensors(owners)}
    return sum(storage.nbytes() for storage in counted - {tensor.untyped_storage() for tensor in besides})


def _tensors(owner: object) -> Iterator[torch.Tensor]:
    match owner:
        case torch.Tensor():
            yield owner
        case tuple() | list():
            for part in owner:
                yield from _tensors(part)
        case Mapping():
            yield from _tensors(list(owner.values()))
        case _ if type(owner).__module__.startswith(_PACKAGE):
            yield from _tensors(list(getattr(owner, "__dict__", {}).values()))
        case _:
            pass
