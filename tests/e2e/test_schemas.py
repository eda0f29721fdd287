"""200 random JSON Schemas through the split system: every output is JSON that its schema accepts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from baton_client import FinishReason, JsonSchema
from tests.schemas import random_schemas
from tests.services import running_split, serving_config

NUM_SCHEMAS = 200
CONCURRENCY = 16
MAX_TOKENS = 400


@pytest.mark.timeout(900)
async def test_every_output_of_random_schemas_validates(smollm2_dir: Path) -> None:
    turn = asyncio.Semaphore(CONCURRENCY)
    serving = serving_config(
        smollm2_dir,
        max_num_seqs={"prefill": CONCURRENCY, "decode": CONCURRENCY},
        decode_batch_buckets={"decode": {"decode": [1, 4, CONCURRENCY]}},
    )
    async with running_split(serving, decode={"num_kv_blocks": 1024, "threads": 2}) as split:

        async def check(seed: int, schema: dict[str, Any]) -> int:
            constraint = JsonSchema(json.dumps(schema))
            async with turn:
                result = await split.client.generate(
                    "JSON: ", constraint=constraint, temperature=1.0, seed=seed, max_tokens=MAX_TOKENS
                )
            (completion,) = result.completions
            assert completion.finish_reason is FinishReason.STOP, f"{schema}: {completion.text!r}"
            jsonschema.validate(json.loads(completion.text), schema)
            return result.usage.completion_tokens

        lens = await asyncio.gather(*map(check, range(NUM_SCHEMAS), random_schemas(2026, NUM_SCHEMAS)))
        await split.settled(5)
    assert max(lens) > 16, "schemas whose outputs are all short would prove little"
