"""Log-probabilities of the default model, of a prompt and of what it generates, against transformers in float32."""

from pathlib import Path

import pytest
import torch
import transformers

from baton.v1 import generation_pb2 as pb
from decode_service.offline import OfflineEngine, OfflineResult, generate_batch
from decode_service.request import Delta, Started
from shared.config.serving import ServingConfig
from shared.sampling.logprobs import TokenLogprobs
from tests.integration.engine.test_runner_smollm2 import TEXT

CLOSE = 0.05
"""Nats."""
NUM_GENERATED = 64
NUM_ALTERNATIVES = 5


def scored(serving: ServingConfig, text: str) -> tuple[list[int], list[TokenLogprobs], list[TokenLogprobs]]:
    """All token ids of prompt and completion; the log-probabilities of the prompt's, and of the completion's."""
    message = pb.GenerateRequest(
        text=text,
        sampling=pb.Sampling(temperature=1, seed=1),
        stopping=pb.Stopping(max_tokens=NUM_GENERATED, ignore_eos=True),
        output=pb.Output(token_ids=True, logprobs=NUM_ALTERNATIVES, prompt_logprobs=NUM_ALTERNATIVES),
    )
    with OfflineEngine.open(serving, num_kv_blocks=64) as engine:
        request = engine.request(message)
        (outcome,) = generate_batch(engine, [request])
    assert isinstance(outcome, OfflineResult)
    (started,) = [event for event in outcome.events if isinstance(event, Started)]
    generated = [found for event in outcome.events if isinstance(event, Delta) for found in event.logprobs]
    return [*request.prompt_token_ids, *outcome.token_ids], list(started.prompt_logprobs), generated


def differences(found: list[TokenLogprobs], token_ids: list[int], expected: torch.Tensor) -> torch.Tensor:
    """Of each position, [positions, token and alternatives]; `expected` [positions, vocab] is of the same ones."""
    assert len(found) == len(token_ids) == len(expected) >= NUM_GENERATED
    assert [one.token.token_id for one in found] == token_ids
    told = [(one.token, *one.alternatives) for one in found]
    ids = torch.tensor([[token.token_id for token in row] for row in told])
    logprobs = torch.tensor([[token.logprob for token in row] for row in told], dtype=torch.float64)
    return (logprobs - expected.gather(1, ids)).abs()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_are_those_of_transformers(smollm2_dir: Path, dtype: str) -> None:
    serving = ServingConfig.model_validate({"model": str(smollm2_dir), "dtype": dtype})
    token_ids, prompt, generated = scored(serving, TEXT)

    reference = transformers.AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0, :-1].double().log_softmax(-1)

    num_prompt = len(prompt)
    assert num_prompt + len(generated) == len(expected)
    for name, found, first in (("prompt", prompt, 0), ("generated", generated, num_prompt)):
        end = first + len(found)
        apart = differences(found, token_ids[first + 1 : end + 1], expected[first:end])
        assert apart.shape == (len(found), 1 + NUM_ALTERNATIVES)
        assert (apart[:, 0] <= CLOSE).double().mean() >= 0.99, f"{name}: {apart[:, 0].max():.2g} nats at most"
        if dtype == "float32":
            assert apart.max() < 0.001
