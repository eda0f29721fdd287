"""`baton generate`: one completion from a decode service to the terminal."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import typer
from google.protobuf.json_format import MessageToJson

from baton.v1 import generation_pb2 as pb
from baton_client import (
    BatonClient,
    BatonClientError,
    ChatMessage,
    Delta,
    InvalidArgument,
    Options,
    Prompt,
    Unavailable,
)
from baton_client.convert import event_from_message
from cli.exit_codes import EXIT_FAILED
from cli.failures import print_error
from cli.stats import StreamStats


@dataclass(frozen=True)
class Display:
    """What is printed: lines of JSON or plain text; whether statistics follow."""

    json_lines: bool
    stats: bool


def read_prompt(argument: str | None, is_chat: bool, system: str | None) -> Prompt:
    """The prompt from the command line or standard input, as text or as chat messages.

    Raises:
        typer.BadParameter: there is none, or standard input is not UTF-8.
    """
    text = _read_standard_input(argument) if argument in (None, "-") else argument
    assert text is not None
    if not is_chat:
        return text
    messages = [ChatMessage("user", text)]
    return messages if system is None else [ChatMessage("system", system), *messages]


def _read_standard_input(argument: str | None) -> str:
    if argument is None and sys.stdin.isatty():
        raise typer.BadParameter("no prompt: give one, or '-' to type it here")
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"standard input is not UTF-8: {error}") from error
    return text.removesuffix("\n")


def run(target: str, prompt: Prompt, options: Options, timeout: float, display: Display) -> None:
    """Streams one completion to standard output.

    Raises:
        typer.Exit: the call failed; what is known about it is on standard error.
        typer.BadParameter: `target` or `timeout` cannot be meant.
    """
    try:
        client = BatonClient(target, timeout=timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--target") from error
    except InvalidArgument as error:
        raise typer.BadParameter(error.message, param_hint="--timeout") from error
    stats = StreamStats()
    try:
        with client, client.stream_messages(prompt, **options) as messages:
            _print_messages(messages, stats, display.json_lines)
    except BatonClientError as error:
        _print_failure(error)
        if isinstance(error, Unavailable) and not error.reason and not stats.has_begun:  # not a service's words
            typer.echo(f"  is a decode service running at {target}? `baton up` starts both services", err=True)
        raise typer.Exit(EXIT_FAILED) from error
    if display.stats:
        typer.echo(stats.summary(), err=True)


def _print_messages(messages: Iterable[pb.StreamGenerateResponse], stats: StreamStats, json_lines: bool) -> None:
    text = ""
    try:
        for message in messages:
            event = event_from_message(message)
            stats.observe(event)
            if json_lines:
                _write(_to_json(message) + "\n")
            elif isinstance(event, Delta) and event.text:
                text = event.text
                _write(text)
    finally:
        if text and not text.endswith("\n"):
            _write("\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _to_json(message: pb.StreamGenerateResponse) -> str:
    return MessageToJson(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        indent=None,
        ensure_ascii=False,
    )


def _print_failure(error: BatonClientError) -> None:
    reason = f" ({error.reason})" if error.reason else ""
    print_error(f"{error.status.name}{reason}: {error.message}")
    for key, value in sorted(error.metadata.items()):
        typer.echo(f"  {key}: {value}", err=True)
    if error.retry_after is not None:
        typer.echo(f"  try again after {error.retry_after:g} s", err=True)
