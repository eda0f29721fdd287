"""What cannot be held in memory is refused with the keys to change, and not tried."""

from pathlib import Path
from typing import Any

import pytest

from decode_service.offline import OfflineEngine
from shared.config.serving import ServingConfig
from shared.errors import ConfigError

LARGEST = 2**31 - 1


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": {"prefill": LARGEST}},
        {"max_batch_tokens": {"prefill": LARGEST}},
        {"prefill_token_buckets": {"prefill": {"prefill_text": [LARGEST]}}},
    ],
)
def test_buffers_larger_than_memory(tiny_llama_dir: Path, settings: dict[str, Any]) -> None:
    serving = ServingConfig.model_validate({"model": str(tiny_llama_dir), **settings})
    with pytest.raises(ConfigError, match=r"need buffers of .* GiB, .*prefill\.prefill_text .*max_num_seqs"):
        OfflineEngine.open(serving, num_kv_blocks=64, threads=1)
