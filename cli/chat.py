"""`baton chat`: a conversation on the terminal."""

from dataclasses import dataclass, field

import typer

from baton_client import BatonClient, BatonClientError, Delta, Finished, FinishReason, Options
from cli.calls import Target, print_failure
from cli.completion_text import CompletionText
from cli.conversation import Conversation
from cli.exit_codes import EXIT_FAILED
from cli.failures import print_error
from cli.stats import StreamStats
from cli.terminal_lines import TerminalLines

HELP = """\
/reset        forget what was said; the system message stays
/system TEXT  put TEXT in place of the system message; without TEXT there is none
/help         this list
/exit         leave, as do Ctrl-D and, at the prompt, Ctrl-C
//TEXT        say /TEXT
Ctrl-C while an answer comes stops it; what has come is kept."""

_TOO_LONG = ("PROMPT_TOO_LONG", "REQUEST_EXCEEDS_POOL")


def run(target: Target, system: str | None, options: Options, has_stats: bool) -> int:
    """Converses until the input ends; returns the exit code, 1 if a turn failed that nobody typed.

    Raises:
        typer.BadParameter: `target` cannot be meant.
        KeyboardInterrupt: Ctrl-C at the prompt or, where nobody types, at any time.
    """
    lines = TerminalLines()
    with target.open() as client:
        chat = Chat(client, target, options, Conversation(system), has_stats, stops_at_interrupt=lines.is_typed)
        if lines.is_typed:
            _note("/help lists commands, Ctrl-D leaves")
        for line in lines:
            if line.strip() == "/exit":
                break
            chat.take(line)
    return EXIT_FAILED if chat.has_failed and not lines.is_typed else 0


@dataclass
class Chat:
    """Carries out one line after another; only answers go to standard output.

    Attributes:
        stops_at_interrupt: whether Ctrl-C during an answer ends that answer alone.
        has_failed: whether any turn has.
    """

    client: BatonClient
    target: Target
    options: Options
    conversation: Conversation
    has_stats: bool
    stops_at_interrupt: bool
    has_failed: bool = field(default=False, init=False)

    def take(self, line: str) -> None:
        """Carries out a command, or has a question answered; a blank line is neither."""
        if not line.strip():
            return
        if line.startswith("//"):
            self._ask(line[1:])
        elif line.startswith("/"):
            self._command(line)
        else:
            self._ask(line)

    def _command(self, line: str) -> None:
        name, _, argument = line.strip().partition(" ")
        match name:
            case "/reset":
                self.conversation.reset()
                _note("forgotten")
            case "/system":
                self.conversation.system = argument.strip() or None
                _note("there is a new system message" if argument.strip() else "there is no system message")
            case "/help":
                _note(HELP)
            case _:
                print_error(f"no command {name}; /help lists them, and //TEXT says /TEXT")

    def _ask(self, question: str) -> None:
        stats = StreamStats()
        answer = _Answer()
        try:
            self._receive(question, answer, stats)
        except BatonClientError as error:
            self.has_failed = True
            print_failure(error, self.target, stats.has_begun)
            if error.reason in _TOO_LONG and self.conversation.has_turns:
                _note("  /reset forgets what was said")
            return
        except KeyboardInterrupt:
            if not self.stops_at_interrupt:
                raise
            _note("stopped" if answer.text else "stopped before anything came; the question is not kept")
        if answer.text or answer.finish_reason is not None:
            self.conversation.remember(question, answer.text)
        if self.has_stats:
            _note(stats.summary())
        elif answer.finish_reason is FinishReason.LENGTH:
            _note("cut at --max-tokens, the server's default for it, or the end of the context")

    def _receive(self, question: str, answer: "_Answer", stats: StreamStats) -> None:
        shown = CompletionText(has_headings=False)
        try:
            messages, resumes = self.conversation.messages(question), self._resumes()
            with self.client.stream(messages, resume=resumes, **self.options) as events:
                for event in events:
                    stats.observe(event)
                    if isinstance(event, Delta):
                        answer.text += event.text
                        shown.add(event.index, event.text)
                    elif isinstance(event, Finished):
                        answer.finish_reason = event.finish_reason
        finally:
            shown.flush()

    def _resumes(self) -> bool:
        """Whether a lost server is waited for; not where none answers to begin with, which the user should learn."""
        return self.target.resumes and self.client.is_ready()


@dataclass
class _Answer:
    """What has come of one."""

    text: str = ""
    finish_reason: FinishReason | None = None


def _note(text: str) -> None:
    typer.echo(text, err=True)
