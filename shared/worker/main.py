"""Command line of a service: options in, exit code out."""

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from shared.config.load import load_serving
from shared.config.services import ServiceConfig
from shared.config.serving import ServingConfig
from shared.errors import ConfigError, ModelLoadError
from shared.rpc.host import Service, run_until_signal
from shared.telemetry.logs import configure_logging

Config = TypeVar("Config", bound=ServiceConfig)

log = structlog.get_logger()

_SWITCH_INTERVAL_S = 0.0005
"""After a step's computation the step loop wants the interpreter back. By default it would wait 5 ms for whatever the
event loop is at; a switch costs some microseconds."""

_CONFIGS = Path(__file__).resolve().parents[2] / "configs"

_EPILOG = """\
Every key of both files can be overridden by an environment variable: BATON_SERVING__KV__BLOCK_SIZE=64,
BATON_{node}__PORT=50070, BATON_{node}__LOG__FORMAT=json; the value is read as YAML.
SIGTERM and Ctrl-C drain: running requests finish, at most drain_grace_s seconds. A second one ends them at once.
Exit codes: 0 stopped by a signal, 1 the engine failed, 2 wrong usage or config.
"""


def run_service(node: str, load: Callable[[Path], Config], make: Callable[[Config, ServingConfig], Service]) -> int:
    """Parses the command line, reads the configs, serves until a signal; returns the exit code."""
    options = _parser(node).parse_args()
    try:
        config, serving = load(options.config), load_serving(options.serving)
    except ConfigError as error:
        sys.stderr.write(f"{error.message}\n")
        return 2
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    configure_logging(node, config.log.level, config.log.format)
    try:
        return asyncio.run(_serve(make, config, serving, options.parent))
    except (ConfigError, ModelLoadError) as error:
        log.error("cannot_start", error=error.message)  # noqa: TRY400 (the message says it all)
        return 2


async def _serve(
    make: Callable[[Config, ServingConfig], Service], config: Config, serving: ServingConfig, parent: int | None
) -> int:
    return await run_until_signal(make(config, serving), parent)


def _parser(node: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {node}_service",
        description=f"Serves the {node} half of a language model over gRPC.",
        epilog=_EPILOG.format(node=node.upper()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--parent", type=int, metavar="PID", help="end, as on SIGTERM, when process PID is no longer this one's parent"
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=_CONFIGS / f"{node}.yaml",
        help="this service's own settings (default: %(default)s)",
    )
    parser.add_argument(
        "--serving",
        type=Path,
        default=_CONFIGS / "serving.yaml",
        help="the settings that both services share (default: %(default)s)",
    )
    return parser
