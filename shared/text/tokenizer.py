"""A model's tokenizer, read from its directory.

Files read: `tokenizer.json` (needed), `tokenizer_config.json`, `chat_template.jinja`, `generation_config.json` and
`config.json`, in the forms Hugging Face gives them. Instances are immutable and may be shared by threads.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from shared.errors import InvalidRequestError, ModelLoadError, Reason
from shared.text.chat_template import ChatTemplate
from shared.text.types import ChatMessage
from shared.text.vocabulary import Vocabulary


class Tokenizer:
    """Text to token ids and back, and conversations to prompts.

    Args:
        backend: The tokenizer itself.
        eos_token_ids: Tokens with which the model ends its answers.
        chat_template: The model's template, if it has one.

    Attributes:
        vocabulary: What each token id stands for.
        eos_token_ids: Ascending.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        eos_token_ids: Sequence[int] = (),
        chat_template: ChatTemplate | None = None,
    ) -> None:
        # Some files carry the limits of their training; prompts are never cut or filled up here.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._chat_template = chat_template
        self.vocabulary = Vocabulary(backend)
        self.eos_token_ids = tuple(sorted(set(eos_token_ids)))

    @classmethod
    def from_directory(cls, path: Path) -> "Tokenizer":
        """Read the tokenizer of a model directory.

        Raises:
            ModelLoadError: A file is missing, or is not what its name says.
        """
        file = path / "tokenizer.json"
        if not file.is_file():
            raise ModelLoadError(f"{path} has no tokenizer.json", metadata={"path": path})
        try:
            backend = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises nothing narrower
            raise ModelLoadError(f"{file}: {error}", metadata={"path": file}) from error
        config = _read_json(path / "tokenizer_config.json")
        special_tokens = _special_tokens(config)
        _apply_sequence_rule(backend, config, special_tokens)
        return cls(backend, _eos_token_ids(path, backend, special_tokens), _chat_template(path, config, special_tokens))

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id; the model itself may have more rows."""
        return self.vocabulary.size

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""
        return self._chat_template is not None

    def to_json(self) -> str:
        """Return the tokenizer as a `tokenizer.json` has it, for libraries that read those."""
        return self._backend.to_str()

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt, with the special tokens that the model puts around it."""
        return self._encode(text, add_special_tokens=True)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; ids that stand for nothing give no text.

        Args:
            token_ids: The tokens, from 0 to 2**32 - 1.
            skip_special_tokens: Whether special tokens are left out of the text.
        """
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def render_chat(self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True) -> str:
        """Return a conversation as text, by the model's own template.

        Args:
            messages: The conversation, at least one message.
            add_generation_prompt: Whether to end the text where the assistant's answer begins.

        Raises:
            InvalidRequestError: CHAT_INVALID: the model has no template, or the template refuses the conversation.
        """
        if self._chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template; send the prompt as text or token ids",
                Reason.CHAT_INVALID,
                {"field": "chat"},
            )
        return self._chat_template.render(messages, add_generation_prompt)

    def encode_chat(self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True) -> list[int]:
        """Return the token ids of `render_chat`'s text; templates write the special tokens, so none are added.

        Raises:
            InvalidRequestError: As `render_chat`.
        """
        return self._encode(self.render_chat(messages, add_generation_prompt), add_special_tokens=False)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # Of a batch, because encoding a single text keeps the interpreter's lock, and with it the event loop.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids


def _read_json(file: Path) -> dict[str, Any]:
    """Return the object in a file, or an empty one if there is no such file."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{file} is not JSON: {error}", metadata={"path": file}) from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{file} holds no object", metadata={"path": file})
    return content


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Return the text of the tokens that `tokenizer_config.json` names, such as {"bos_token": "<s>"}."""
    tokens = {name: _token_text(value) for name, value in config.items() if re.fullmatch(r"[a-z]+_token", name)}
    return {name: text for name, text in tokens.items() if text is not None}


def _token_text(value: object) -> str | None:
    """Return the text of a token, which is written as a string or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _apply_sequence_rule(backend: tokenizers.Tokenizer, config: dict[str, Any], special_tokens: dict[str, str]) -> None:
    """Let `add_bos_token` and `add_eos_token`, where stated, overrule `tokenizer.json`, as transformers does."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    bos = special_tokens.get("bos_token") if config.get("add_bos_token") else None
    eos = special_tokens.get("eos_token") if config.get("add_eos_token") else None
    around = [(token, _id_of(backend, token)) for token in (bos, eos) if token is not None]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=[*([bos] if bos else []), "$A", *([eos] if eos else [])], special_tokens=around
    )


def _id_of(backend: tokenizers.Tokenizer, token: str) -> int:
    token_id = backend.token_to_id(token)
    if token_id is None:
        raise ModelLoadError(
            f"tokenizer_config.json puts {token!r} around prompts, and tokenizer.json does not have it"
        )
    return token_id


def _eos_token_ids(path: Path, backend: tokenizers.Tokenizer, special_tokens: dict[str, str]) -> list[int]:
    """Return the ids of the generation config (else the model config), and that of the tokenizer's own token."""
    stated = _read_json(path / "generation_config.json").get("eos_token_id")
    if stated is None:
        stated = _read_json(path / "config.json").get("eos_token_id")
    ids = stated if isinstance(stated, list) else [stated]
    own = backend.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
    return [token_id for token_id in (*ids, own) if isinstance(token_id, int)]


def _chat_template(path: Path, config: dict[str, Any], special_tokens: dict[str, str]) -> ChatTemplate | None:
    """Return the template of `chat_template.jinja`, else of `tokenizer_config.json`, if there is one."""
    file = path / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(source, list):
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    return ChatTemplate(source, special_tokens) if source else None
