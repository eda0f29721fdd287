import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from baton_client import BatonClient
from tests.integration.client.echo_server import RunningServer, ServerThread, running_server


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as thread:
        yield thread


@pytest.fixture
def second_server() -> Iterator[ServerThread]:
    with ServerThread() as thread:
        yield thread


@pytest.fixture
def client(server: ServerThread) -> Iterator[BatonClient]:
    with BatonClient(server.target, timeout=30) as connected:
        yield connected


@pytest.fixture
async def aio_server() -> AsyncIterator[RunningServer]:
    async with running_server() as running:
        yield running


@pytest.fixture
def dead_target() -> Iterator[str]:
    """A port that is taken, but on which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
