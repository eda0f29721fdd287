"""`baton generate`: the completions of one prompt from a decode service to the terminal."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import typer
from google.protobuf.json_format import MessageToJson

from baton.v1 import generation_pb2 as pb
from baton_client import BatonClientError, Delta, Event, Finished, Options, Prompt, Started, TokenLogprobs
from baton_client.convert import event_from_message
from cli.calls import Target, print_failure
from cli.completion_text import CompletionText, write
from cli.exit_codes import EXIT_FAILED
from cli.logprob_table import print_logprobs
from cli.stats import StreamStats


@dataclass(frozen=True)
class Display:
    """What is printed: lines of JSON or plain text, with headings if there are several; whether statistics follow."""

    json_lines: bool
    has_headings: bool
    stats: bool


def run(target: Target, prompt: Prompt, options: Options, display: Display) -> None:
    """Streams the completions to standard output.

    Raises:
        typer.Exit: the call failed; what is known about it is on standard error.
        typer.BadParameter: `target` cannot be meant.
    """
    stats = StreamStats()
    with target.open() as client:
        try:
            with client.stream_messages(prompt, resume=target.resumes, **options) as messages:
                if display.json_lines:
                    _print_json(messages, stats)
                else:
                    _print_text(messages, stats, display.has_headings)
        except BatonClientError as error:
            print_failure(error, target, stats.has_begun)
            raise typer.Exit(EXIT_FAILED) from error
    if display.stats:
        typer.echo(stats.summary(), err=True)


def _print_json(messages: Iterable[pb.StreamGenerateResponse], stats: StreamStats) -> None:
    for message in messages:
        stats.observe(event_from_message(message))
        write(_to_json(message) + "\n")


def _print_text(messages: Iterable[pb.StreamGenerateResponse], stats: StreamStats, has_headings: bool) -> None:
    text = CompletionText(has_headings)
    logprobs = _Logprobs()
    try:
        for message in messages:
            event = event_from_message(message)
            stats.observe(event)
            logprobs.observe(event)
            if isinstance(event, Delta):
                text.add(event.index, event.text)
            elif isinstance(event, Finished):
                text.end(event.index)
    finally:
        text.flush()
    logprobs.print(has_headings)


class _Logprobs:
    """Keeps log-probabilities until the texts are printed."""

    def __init__(self) -> None:
        self._prompt: tuple[TokenLogprobs, ...] = ()
        self._completions: defaultdict[int, list[TokenLogprobs]] = defaultdict(list)

    def observe(self, event: Event | None) -> None:
        if isinstance(event, Started):
            self._prompt = event.prompt_logprobs
        elif isinstance(event, Delta) and event.logprobs:
            self._completions[event.index] += event.logprobs

    def print(self, has_several: bool) -> None:
        if self._prompt:
            print_logprobs("prompt, from its second token on", self._prompt)
        for index, positions in sorted(self._completions.items()):
            print_logprobs(f"completion {index}" if has_several else "completion", positions)


def _to_json(message: pb.StreamGenerateResponse) -> str:
    return MessageToJson(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        indent=None,
        ensure_ascii=False,
    )
