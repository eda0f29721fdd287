"""The default model: its real weights against transformers, and what it says."""

from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from shared.engine.runner import LoadedModel, load_model
from shared.engine.step import StepRow
from tests.integration.engine.harness import Harness, table_for

TEXT = """\
The art of measuring time is older than writing. Long before there were clocks with hands, people watched the shadow \
of a stick move over the ground, and knew from its length how much of the day was left. The first water clocks came \
later: a bowl with a small hole, which emptied at an even rate, told the length of a speech in court or of a watch at \
night. In the fourteenth century, towns in Italy and England began to put large mechanical clocks into their towers. \
They had no faces at first; a bell told the hours, and this is where the word "clock" comes from. A good one was \
wrong by a quarter of an hour a day. In 1656 Christiaan Huygens, a Dutch scholar, built the first clock with a \
pendulum, and the error fell to about ten seconds. Sailors needed more. To know how far east or west a ship had gone, \
its crew had to know the time at home, and no pendulum keeps time on a rolling deck. John Harrison, a carpenter from \
Yorkshire, worked on the problem for more than forty years. His fourth sea clock, which looks like a large watch, \
lost only five seconds on a voyage of eighty-one days to Jamaica. Today the second is defined by an atom of caesium: \
9,192,631,770 periods of the radiation between two levels of its ground state. Clocks that use strontium are better \
still, and would be wrong by less than a second over the whole age of the universe."""


@pytest.fixture(scope="module")
def model(smollm2_dir: Path) -> LoadedModel:
    return load_model(smollm2_dir, "float32")


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))


def test_logits_of_a_text_equal_those_of_transformers(
    smollm2_dir: Path, model: LoadedModel, tokenizer: Tokenizer
) -> None:
    tokens = tokenizer.encode(TEXT).ids
    assert 300 <= len(tokens) <= 400
    harness = Harness(model, max_num_rows=400)
    rows = [
        StepRow([token], position, table_for(len(tokens)), wants_logits=True) for position, token in enumerate(tokens)
    ]

    logits = harness.run(*rows)

    reference_model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    with torch.inference_mode():
        reference = reference_model(torch.tensor([tokens])).logits[0]
    assert (logits - reference).abs().mean() < 1e-3
    assert (logits.argmax(-1) == reference.argmax(-1)).float().mean() >= 0.98
    chunked = Harness(model).outcome(tokens, table_for(len(tokens)), [200, len(tokens) - 200])
    assert torch.equal(chunked.logits, logits[-1])


def test_greedy_continuation_is_right(model: LoadedModel, tokenizer: Tokenizer) -> None:
    harness, tokens = Harness(model), tokenizer.encode("The capital of France is").ids
    logits = harness.run(StepRow(tokens, 0, [1], wants_logits=True))
    output: list[int] = []
    while len(output) < 3:
        output.append(int(logits[0].argmax()))
        position = len(tokens) + len(output) - 1
        logits = harness.run(StepRow(output[-1:], position, [1], wants_logits=True))

    assert tokenizer.decode(output).startswith(" Paris.")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello, world", ["Hello", ",", "Ġworld"]),
        ("in 1656", ["in", "Ġ", "1", "6", "5", "6"]),
        ("<|im_start|>user\n", ["<|im_start|>", "user", "Ċ"]),
        ("x²", ["x", "Â²"]),
    ],
)
def test_text_is_cut_as_the_model_was_trained(tokenizer: Tokenizer, text: str, pieces: list[str]) -> None:
    assert tokenizer.encode(text).tokens == pieces


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "def f(x):\n    return [i ** 2 for i in range(x)]  # ok\n\n\n\tdone",
        "emoji 😀👩‍👩‍👧 naïve café Ω≈ç√ 日本語 русский عربى",
        "  leading, trailing  \r\n\u00a0\u2003<|im_end|><|endoftext|>",
    ],
)
def test_any_text_survives_encoding_and_decoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_model_is_what_it_says(model: LoadedModel, smollm2_dir: Path) -> None:
    config = model.config

    assert (config.num_layers, config.hidden_size, config.vocab_size, config.max_model_len) == (30, 576, 49152, 8192)
    assert config.eos_token_ids == (2,)
    assert "Apache License" in (smollm2_dir / "LICENSE").read_text()
