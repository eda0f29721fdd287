"""Renders conversations with a model's own chat template.

Templates come with models and are not trusted: they run in Jinja's immutable sandbox. The environment is the one that
templates on Hugging Face are written for (`transformers.utils.chat_template_utils`): its trimming of blocks, its
globals, its `tojson`, and the `generation` tag, which marks the assistant's words for training and is transparent here.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import InvalidRequestError, ModelLoadError, Reason
from shared.text.types import ChatMessage

ROLES = ("system", "user", "assistant", "tool")


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: The template's text.
        special_tokens: Text of the model's special tokens by the names templates use, such as "bos_token".

    Raises:
        ModelLoadError: The template is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            self._template = _make_environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ModelLoadError(f"the chat template is wrong at line {error.lineno}: {error.message}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool) -> str:
        """Return the conversation as the text of a prompt.

        Args:
            messages: The conversation, at least one message.
            add_generation_prompt: Whether to end the text where the assistant's answer begins.

        Raises:
            InvalidRequestError: CHAT_INVALID: no message, an unknown role, or a conversation that the template refuses
                or fails on.
        """
        _check_messages(messages)
        try:
            return self._template.render(
                messages=[{"role": message.role, "content": message.content} for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise InvalidRequestError(
                f"the model's chat template refuses the conversation: {error}", Reason.CHAT_INVALID, {"field": "chat"}
            ) from error


def _check_messages(messages: Sequence[ChatMessage]) -> None:
    if not messages:
        raise InvalidRequestError("the chat has no messages", Reason.CHAT_INVALID, {"field": "chat.messages"})
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            field = f"chat.messages[{index}].role"
            raise InvalidRequestError(
                f"{field} is {message.role[:64]!r}, and must be one of {', '.join(ROLES)}",
                Reason.CHAT_INVALID,
                {"field": field, "value": message.role[:64], "bounds": ", ".join(ROLES)},
            )


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` renders what is inside it."""

    tags = {"generation"}  # noqa: RUF012 - the attribute that Jinja reads

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, where touching what is out of reach is an error even if nothing is done with it."""

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        raise SecurityError(f"attribute {attribute!r} of {type(obj).__name__!r} is out of reach")


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which prompts are not.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
