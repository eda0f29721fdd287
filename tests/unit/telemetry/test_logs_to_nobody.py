"""A log line that nobody can read any more disturbs nobody."""

import subprocess
import sys


def test_a_reader_that_has_gone() -> None:
    program = (
        "import sys, time, structlog\n"
        "from shared.telemetry.logs import configure_logging\n"
        "configure_logging('decode', 'info', 'json')\n"
        "sys.stdin.read()\n"
        "structlog.get_logger().info('lost')\n"
        "sys.stdout.write('still here')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    process.stderr.close()
    process.stderr = None
    output, _ = process.communicate("", timeout=60)
    assert output == "still here"
