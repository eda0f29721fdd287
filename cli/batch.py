"""`baton batch`: a file of requests to a file of answers, in this process."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import torch
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.text import Text

from cli.batch_input import InputLine, LineRequest, parse_request, read_lines, request_id_of
from cli.batch_output import BatchOutput, Source
from cli.batch_tally import BatchBar, Tally
from cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from cli.failures import plain_failures, print_error
from decode_service.answers import TextOf, events_to_proto
from decode_service.offline import OfflineEngine, OfflineFailure, OfflineResult
from decode_service.request import GenerationRequest
from shared.config.load import load_decode, load_serving
from shared.config.services import DecodeServiceConfig
from shared.config.serving import ServingConfig
from shared.engine.models.config import read_config
from shared.engine.models.registry import model_fingerprint, resolve_model
from shared.engine.select import choose_ops
from shared.errors import BatonError, ConfigError, ModelLoadError
from shared.kv.dtypes import dtype_name
from shared.telemetry.logs import configure_logging

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class BatchJob:
    """What `baton batch` was asked for."""

    source: str
    output: Path
    serving: Path
    decode_config: Path
    overwrite: bool
    quiet: bool


def run(job: BatchJob) -> int:
    """Runs the batch; returns the exit code: 0 all lines answered, 1 some failed, 130 interrupted."""
    console = Console(stderr=True, highlight=False)
    try:
        with plain_failures():
            try:
                return _run(job, console)
            except ModelLoadError as error:  # a wrong `model` in the config, as for services
                raise ConfigError(error.message) from error
    except OSError as error:  # such as a full disk
        print_error(f"{job.source} to {job.output}: {error.strerror or error}")
        return EXIT_FAILED


def _run(job: BatchJob, console: Console) -> int:
    with ExitStack() as stack:
        serving, config = load_serving(job.serving), load_decode(job.decode_config)
        configure_logging("batch", "warning", "console")
        stream = stack.enter_context(_open_input(job))
        output = stack.enter_context(BatchOutput(job.output, _source_of(serving, config), overwrite=job.overwrite))
        lines = output.unanswered(read_lines(stream))
        tally = Tally(console, output)
        if (first := next(lines, None)) is None:
            _say(console, f"{job.output}: {tally.summary()}; nothing is left to do")
            return tally.exit_code
        bar = stack.enter_context(
            BatchBar(console, None if job.quiet else _num_lines(job.source), tally, hidden=job.quiet)
        )
        try:
            engine = stack.enter_context(_open_engine(serving, config))
            tally.begin()
            for _ in Answering(engine, output, tally).run(chain([first], lines), lambda: bar.show(engine)):
                bar.show(engine)
        except KeyboardInterrupt:
            bar.close()
            _say(console, f"interrupted: {job.output}: {tally.summary()}; the same command goes on from there")
            return EXIT_INTERRUPTED
        bar.close()
        _say(console, f"{job.output}: {tally.summary()}")
        return tally.exit_code


class Answering:
    """Lines in, records out.

    Args:
        engine: what answers.
        output: where to.
        tally: what is told of each line that is done.
    """

    def __init__(self, engine: OfflineEngine, output: BatchOutput, tally: Tally) -> None:
        self._engine = engine
        self._output = output
        self._tally = tally
        self._running: dict[int, LineRequest] = {}
        """By place among the requests."""

    def run(self, lines: Iterator[InputLine], on_step: Callable[[], None]) -> Iterator[None]:
        """Answers lines; yields after each request that is done."""
        for outcome in self._engine.run(self._requests(lines), on_step=on_step):
            asked = self._running.pop(outcome.index)
            if isinstance(outcome, OfflineFailure):
                self._fail(asked.line, outcome.error)
            else:
                answer = _response(outcome, asked.wants_token_ids, self._engine.model.text_of)
                self._output.put(asked.line, outcome.request.request_id, {"response": answer})
                self._tally.note_result(outcome)
            yield

    def _requests(self, lines: Iterator[InputLine]) -> Iterator[GenerationRequest]:
        """The requests of the lines that are right; the others are answered with their error at once."""
        num_requests = 0
        for line in lines:
            try:
                asked = parse_request(line, self._engine.model)
            except BatonError as error:
                self._fail(line, error)
                continue
            self._running[num_requests] = asked
            num_requests += 1
            yield asked.request

    def _fail(self, line: InputLine, error: BatonError) -> None:
        answer = {"reason": str(error.reason), "message": error.message, "metadata": error.metadata}
        self._output.put(line, request_id_of(line), {"error": answer})
        self._tally.note_failure(line, error)


def _response(result: OfflineResult, wants_token_ids: bool, text_of: TextOf) -> dict[str, Any]:
    message = events_to_proto(result.events, wants_token_ids, text_of)
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _open_input(job: BatchJob) -> BinaryIO:
    if job.source == STANDARD_INPUT:
        if sys.stdin is None:
            raise ConfigError("standard input is closed")
        return sys.stdin.buffer
    path = Path(job.source)
    try:
        stream = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if job.output.exists() and path.samefile(job.output):
        stream.close()
        raise ConfigError(f"{path}: is both input and output")
    return stream


def _source_of(serving: ServingConfig, config: DecodeServiceConfig) -> Source:
    """What answers depend on, with what `auto` stands for on this machine: another one may take other kernels."""
    model_dir = resolve_model(serving.model)
    ops = choose_ops(
        read_config(model_dir),
        serving.dtype,
        serving.kv.block_size,
        serving.kernels,
        torch.device("cpu"),
        serving.weights,
    ).ops
    return Source(
        model_fingerprint=model_fingerprint(model_dir),
        dtype=dtype_name(ops.weight_dtype),
        weights=serving.weights,
        kernels=ops.name,
        max_model_len=serving.max_model_len,
        default_max_tokens=config.default_max_tokens,
    )


def _open_engine(serving: ServingConfig, config: DecodeServiceConfig) -> OfflineEngine:
    return OfflineEngine.open(
        serving,
        num_kv_blocks=config.num_kv_blocks,
        threads=config.threads,
        default_max_tokens=config.default_max_tokens,
    )


def _say(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)


def _num_lines(source: str) -> int | None:
    """Lines of a file that are not blank; None where the input can be read only once."""
    path = Path(source)
    if source == STANDARD_INPUT or not path.is_file():
        return None
    with path.open("rb") as stream:
        return sum(1 for _ in read_lines(stream))
