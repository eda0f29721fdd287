"""Where a prompt comes from: the command line, standard input or a file."""

import sys
from dataclasses import dataclass
from pathlib import Path

import typer
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from baton_client import Chat, ChatMessage, Embeddings, Prompt
from cli.request_syntax import parse_token_ids


@dataclass(frozen=True, slots=True)
class PromptSource:
    """A prompt as the command line names it.

    Attributes:
        argument: its text; "-" and None are standard input.
        is_chat: whether that is a user's message, after the `system` one.
        is_token_ids: whether it is token ids.
        messages: file of a chat in place of it, or "-".
        embeddings: file of vectors in place of it.
        ends_with_last_message: whether a chat ends where its last message does, not where an answer begins.
    """

    argument: str | None = None
    is_chat: bool = False
    system: str | None = None
    is_token_ids: bool = False
    messages: str | None = None
    embeddings: Path | None = None
    ends_with_last_message: bool = False

    def check(self) -> None:
        """Refuses options that do not go together.

        Raises:
            typer.BadParameter: there are some.
        """
        options = {
            "--chat": self.is_chat,
            "--prompt-token-ids": self.is_token_ids,
            "--messages": self.messages is not None,
            "--embeddings": self.embeddings is not None,
        }
        kinds = [name for name, is_given in options.items() if is_given]
        if len(kinds) > 1:
            raise typer.BadParameter(f"{' and '.join(kinds)} name different kinds of prompt: give one")
        if self.argument is not None and (self.messages is not None or self.embeddings is not None):
            raise typer.BadParameter(f"{kinds[0]} takes the place of PROMPT: give one")
        if self.system is not None and not self.is_chat:
            raise typer.BadParameter("--system needs --chat")
        if self.ends_with_last_message and not self.is_chat and self.messages is None:
            raise typer.BadParameter("--no-generation-prompt needs --chat or --messages")

    def read(self) -> Prompt:
        """The prompt.

        Raises:
            typer.BadParameter: there is none, or what there is cannot be read as one.
        """
        self.check()
        if self.embeddings is not None:
            return _read_embeddings(self.embeddings)
        if self.messages is not None:
            return self._chat(_read_messages(self.messages))
        text = _read_standard_input(self.argument) if self.argument in (None, "-") else self.argument
        assert text is not None
        if self.is_token_ids:
            return _parse_token_ids(text)
        return self._chat(self._messages(text)) if self.is_chat else text

    def _messages(self, text: str) -> list[ChatMessage]:
        messages = [ChatMessage("user", text)]
        return messages if self.system is None else [ChatMessage("system", self.system), *messages]

    def _chat(self, messages: list[ChatMessage]) -> Chat:
        return Chat(messages, add_generation_prompt=False if self.ends_with_last_message else None)


def _read_standard_input(argument: str | None) -> str:
    if argument is None and sys.stdin.isatty():
        raise typer.BadParameter("no prompt: give one, or '-' to type it here")
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"standard input is not UTF-8: {error}") from error
    return text.removesuffix("\n")


def _parse_token_ids(text: str) -> list[int]:
    try:
        return parse_token_ids(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--prompt-token-ids") from error


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: str
    content: str


def _read_messages(file: str) -> list[ChatMessage]:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        messages = TypeAdapter(list[_Message]).validate_json(data)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file!r}: {error}", param_hint="--messages") from error
    except ValidationError as error:
        raise typer.BadParameter(f"{file!r}: {_first_error(error)}", param_hint="--messages") from error
    if not messages:
        raise typer.BadParameter(f"{file!r} has no messages", param_hint="--messages")
    return [ChatMessage(message.role, message.content) for message in messages]


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


def _read_embeddings(file: Path) -> Embeddings:
    import numpy as np

    try:
        with file.open("rb") as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
        if array.dtype == np.uint16 and array.ndim == 2:
            return Embeddings(array.astype("<u2").tobytes(), len(array), "bfloat16")
        return Embeddings.from_array(array)
    except (OSError, ValueError, EOFError) as error:
        raise typer.BadParameter(f"cannot read {str(file)!r}: {error}", param_hint="--embeddings") from error
