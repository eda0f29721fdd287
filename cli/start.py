"""What a command sees to before its imports, which take long."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from cli.exit_codes import EXIT_INTERRUPTED


def quiet_grpc() -> None:
    """Keeps gRPC's own notes, on connections that end and the like, off standard error; to be called before its import.

    Processes started from here inherit this. A level that is set already stays so.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


@contextmanager
def interrupts_exit() -> Iterator[None]:
    """Within the block, Ctrl-C ends this process at once and without a word: there is nothing to clean up yet.

    A KeyboardInterrupt there would come out of whatever module is being imported, some of which are not Python. A
    SIGINT that is ignored or handled already stays so.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
