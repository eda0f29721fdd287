"""The `tokenizer.json` and `tokenizer_config.json` that a GGUF file's metadata amount to."""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from shared.engine.models.gguf_file import GgufFile
from shared.errors import ModelLoadError

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT_BY_KIND = {
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "llama-bpe": _LLAMA3_SPLIT,
    "qwen2": _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}"),
    "deepseek-r1-qwen": _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}"),
    "tekken": _TEKKEN_SPLIT,
}
_BOS_BY_DEFAULT = ("llama3", "llama-v3", "llama-bpe", "tekken")
"""Kinds whose files may leave `add_bos_token` out and mean true (as llama.cpp reads them)."""


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """A tokenizer that encodes as the model was trained.

    Raises:
        ModelLoadError: the vocabulary is of a kind that is not served, or splits text in an unknown way.
    """
    match file.metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            tokenizer = _byte_level(file)
        case "llama":
            tokenizer = _sentencepiece(file)
        case kind:
            raise ModelLoadError(f"{file.path}: its tokenizer is {kind!r}; served are gpt2 and llama")
    types = file.metadata.get("tokenizer.ggml.token_type") or ()
    for token, token_type in zip(_tokens(file), types, strict=False):
        if token_type == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif token_type == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=False)])
    _add_ends(tokenizer, file)
    return tokenizer


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """Names of the special tokens, the chat template, and what is added to each text."""
    adds_bos, adds_eos = _adds_ends(file)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.key("context_length"),
        "clean_up_tokenization_spaces": False,
        "add_bos_token": adds_bos,
        "add_eos_token": adds_eos,
        "bos_token": _special(file, "bos_token_id"),
        "eos_token": _special(file, "eos_token_id"),
        "unk_token": _special(file, "unknown_token_id"),
        "pad_token": _special(file, "padding_token_id"),
        "chat_template": file.metadata.get("tokenizer.chat_template"),
    }
    return {key: value for key, value in config.items() if value is not None}


def _tokens(file: GgufFile) -> list[str]:
    tokens: list[str] = file.metadata["tokenizer.ggml.tokens"]
    return tokens


def _special(file: GgufFile, key: str) -> str | None:
    token_id = file.metadata.get(f"tokenizer.ggml.{key}")
    return None if token_id is None else _tokens(file)[token_id]


def _byte_level(file: GgufFile) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(_tokens(file))}
    merges = [_pair(merge) for merge in file.metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = _byte_level_splits(file)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_level_splits(file: GgufFile) -> pre_tokenizers.PreTokenizer:
    kind = file.metadata.get("tokenizer.ggml.pre", "default")
    match kind:
        case "default" | "gpt-2":
            return pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        case _ if kind in _SPLIT_BY_KIND:
            split = pre_tokenizers.Split(Regex(_SPLIT_BY_KIND[kind]), behavior="isolated")
            bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            return pre_tokenizers.Sequence([split, bytes_only])
    raise ModelLoadError(f"{file.path}: how its tokenizer splits text ({kind!r}) is not known here")


def _sentencepiece(file: GgufFile) -> Tokenizer:
    tokens = _tokens(file)
    vocab = {token: index for index, token in enumerate(tokens)}
    scores = dict(zip(tokens, file.metadata["tokenizer.ggml.scores"], strict=True))
    unknown = _special(file, "unknown_token_id")
    model = models.BPE(
        vocab=vocab, merges=_merges_from_scores(vocab, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    adds_space = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    scheme = "first" if adds_space else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_from_scores(vocab: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
    """Sentencepiece lists no merges: every pair of tokens that make a token is one, best score first."""
    pairs = [
        (score, token[:cut], token[cut:])
        for token, score in scores.items()
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    pairs.sort(key=lambda pair: (-pair[0], vocab[pair[1]], vocab[pair[2]]))
    return [(left, right) for _, left, right in pairs]


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _adds_ends(file: GgufFile) -> tuple[bool, bool]:
    is_sentencepiece = file.metadata.get("tokenizer.ggml.model") == "llama"
    adds_bos_by_default = is_sentencepiece or file.metadata.get("tokenizer.ggml.pre") in _BOS_BY_DEFAULT
    adds_bos = file.metadata.get("tokenizer.ggml.add_bos_token", adds_bos_by_default)
    return bool(adds_bos), bool(file.metadata.get("tokenizer.ggml.add_eos_token", False))


def _add_ends(tokenizer: Tokenizer, file: GgufFile) -> None:
    adds_bos, adds_eos = _adds_ends(file)
    bos = _special(file, "bos_token_id") if adds_bos else None
    eos = _special(file, "eos_token_id") if adds_eos else None
    ends = [(token, tokenizer.token_to_id(token)) for token in (bos, eos) if token is not None]
    if ends:
        template = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
