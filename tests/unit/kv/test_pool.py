import pytest
import torch

from shared.errors import HandleError, KvTransferError, Reason
from shared.kv.allocator import BlockAllocator
from shared.kv.layout import KvLayout
from shared.kv.pool import KvPool
from tests.unit.kv.support import BLOCK_BYTES, LAYOUT


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shape_dtype_and_zeros(dtype: str) -> None:
    layout = KvLayout("token_major", dtype, block_size=4, num_layers=2, num_kv_heads=3, head_dim=8)
    with KvPool.anonymous(layout, 5, "e1") as pool:
        assert pool.tensor.shape == (5, 2, 2, 3, 32)
        assert pool.tensor.dtype is getattr(torch, dtype)
        assert pool.tensor.is_contiguous()
        assert not pool.tensor.any()
        assert pool.tensor.data_ptr() % 4096 == 0
        assert pool.segment is None


def test_block_view_is_the_tensors_own_memory() -> None:
    with KvPool.anonymous(LAYOUT, 3, "e1") as pool:
        view = pool.block_view(2)
        assert view.nbytes == BLOCK_BYTES
        view[:4] = torch.tensor([1.5]).numpy().tobytes()
        assert pool.tensor[2].flatten()[0] == 1.5
        pool.tensor[2, 1, 1, 0, 7] = -2.0
        assert view[-4:].tobytes() == torch.tensor([-2.0]).numpy().tobytes()
        assert not pool.tensor[:2].any()


def test_generations_serve_an_allocator() -> None:
    with KvPool.anonymous(LAYOUT, 3, "e1") as pool:
        allocator = BlockAllocator(3, pool.generations)
        allocator.release(allocator.allocate(2))
        allocator.allocate(2)
        assert pool.generations.tolist() == [0, 2, 2]
        assert pool.generation(1) == 2


@pytest.mark.parametrize("block_id", [-1, 3, 2**40])
def test_blocks_out_of_range_are_refused(block_id: int) -> None:
    with KvPool.anonymous(LAYOUT, 3, "e1") as pool:
        for use in (pool.block_view, pool.generation):
            with pytest.raises(HandleError) as caught:
                use(block_id)
            assert caught.value.reason is Reason.HANDLE_OUT_OF_RANGE
            assert caught.value.metadata == {"block_id": str(block_id), "num_blocks": "3"}


def test_a_closed_pool_refuses_and_can_be_closed_again() -> None:
    pool = KvPool.anonymous(LAYOUT, 3, "e1")
    pool.close()
    pool.close()
    for use in (pool.block_view, pool.generation):
        with pytest.raises(KvTransferError, match="the pool of epoch e1 is closed"):
            use(1)


def test_memory_outlives_close_while_a_tensor_or_view_uses_it() -> None:
    pool = KvPool.anonymous(LAYOUT, 3, "e1")
    tensor, view = pool.tensor[1], pool.block_view(2)
    pool.close()
    tensor.fill_(3.0)
    assert tensor.sum() == 3.0 * tensor.numel()
    view[:] = bytes(BLOCK_BYTES)
    assert view.tobytes() == bytes(BLOCK_BYTES)
