"""A process that is asked one question at a time: a JSON line in, a JSON line out."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.command import BenchmarkError

ROOT = Path(__file__).resolve().parents[1]
_STOP_S = 5.0


class JsonProcess:
    """The handle of such a process.

    Args:
        name: for messages.
        process: with pipes to its input and output.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    async def ask(self, question: str, **arguments: object) -> Any:  # noqa: ANN401 (JSON)
        """What it answers.

        Raises:
            BenchmarkError: the process has ended; what it wrote to standard error says why.
        """
        writer = self._process.stdin
        assert writer is not None
        writer.write(json.dumps({"ask": question, **arguments}).encode() + b"\n")
        with suppress(ConnectionError):  # told by the end of its output
            await writer.drain()
        return await self.read()

    async def read(self) -> Any:  # noqa: ANN401 (JSON)
        """The next line that it writes; see `ask`."""
        reader = self._process.stdout
        assert reader is not None
        if not (line := await reader.readline()):
            raise BenchmarkError(f"the process of {self.name} ended with code {await self._process.wait()}")
        return json.loads(line)


@asynccontextmanager
async def running(
    name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> AsyncGenerator[JsonProcess]:
    """Starts the command at the root of this checkout; it is to end when its input does, and ends with the block.

    It has a session of its own, so that a terminal's Ctrl-C reaches this process alone.

    Args:
        name: for messages.
        command: program and arguments.
        environment: of the process; None: this one's.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    try:
        yield JsonProcess(name, process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
