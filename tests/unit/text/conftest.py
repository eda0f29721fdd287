"""Small tokenizers of each kind that is served, built here so that no model is needed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

from shared.text.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps.",
    "Grüße aus Köln! 東京は日本の首都です。",
    "👨‍👩‍👧 family, 👍🏽 thumbs, ∑ and €",
    "  indented\n\n\tcode = [1, 2, 3]  ",
]
WriteModel = Callable[..., Path]


def byte_level_backend() -> tokenizers.Tokenizer:
    """Byte-level BPE in the manner of SmolLM2, Llama 3 and Qwen."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def byte_level_with_added_tokens_backend() -> tokenizers.Tokenizer:
    """The same with added tokens: in the alphabet of bytes ("é" there is one byte), outside it, and partly so."""
    backend = byte_level_backend()
    backend.add_tokens([AddedToken("<tool>"), AddedToken("é"), AddedToken("日本語"), AddedToken("aé語")])
    return backend


def sentencepiece_backend() -> tokenizers.Tokenizer:
    """BPE with byte fallback and a dropped leading space, in the manner of Llama 2 and Mistral."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁▁", "▁the", "▁a", "the", "a", "b", "h", "e", "t", "d", "o", "g", ".", "\ufffd", "é", "▁dog", "th"]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: token_id for token_id, piece in enumerate(pieces)},
            merges=[("▁", "▁"), ("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "a")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def metaspace_backend() -> tokenizers.Tokenizer:
    """Unigram with Metaspace, in the manner of T5 and ALBERT; no byte fallback."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), ("▁▁", -5.0), ("▁the", -1.0), ("s", -3.0), ("▁dog", -1.5)]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<unk>", "</s>"])
    return backend


def spaced_backend() -> tokenizers.Tokenizer:
    """Whole words with no decoder, which join with spaces."""
    backend = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 2, "three": 3}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<unk>"])
    return backend


BACKENDS = {
    "byte_level": byte_level_backend,
    "byte_level_with_added_tokens": byte_level_with_added_tokens_backend,
    "sentencepiece": sentencepiece_backend,
    "metaspace": metaspace_backend,
    "spaced": spaced_backend,
}


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(byte_level_backend(), [2])


@pytest.fixture(scope="session")
def byte_level_with_added_tokens() -> Tokenizer:
    return Tokenizer(byte_level_with_added_tokens_backend(), [2])


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return Tokenizer(sentencepiece_backend(), [2])


@pytest.fixture(scope="session", params=list(BACKENDS))
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(BACKENDS[request.param]())


@pytest.fixture
def write_model(tmp_path: Path) -> WriteModel:
    """A model directory with a byte-level tokenizer and the JSON files given as `name={...}`."""

    def write(backend: tokenizers.Tokenizer | None = None, **files: Any) -> Path:
        (backend or byte_level_backend()).save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return write
