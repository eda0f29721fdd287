"""Which processes `baton up` and the demo start, and where each one listens: from configs to specs, nothing is run.

The processes are to be started by the process that made the layout, as their commands name it as their parent.
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton_client.health import GENERATION_SERVICE, PREFILL_SERVICE
from cli.fleet import ProcessSpec, service_command
from shared.config.load import load_decode, load_prefill, load_serving
from shared.config.resolve import resolve
from shared.config.services import DecodeServiceConfig, PrefillServiceConfig, ServiceConfig
from shared.errors import ConfigError

_ANY_ADDRESS = ("0.0.0.0", "::", "[::]")  # noqa: S104 (recognized, not bound)
_CONFIGS = Path(__file__).resolve().parents[1] / "configs"


@dataclass(frozen=True)
class ConfigFiles:
    """The config files of a deployment: the shared one, and each service's own; by default those of this checkout."""

    serving: Path = _CONFIGS / "serving.yaml"
    prefill: Path = _CONFIGS / "prefill.yaml"
    decode: Path = _CONFIGS / "decode.yaml"


@dataclass(frozen=True)
class Layout:
    """The processes to start.

    Attributes:
        specs: prefill first.
        drain_grace_s: seconds that they get to drain.
        shm_dir: where prefill processes keep their KV pools.
    """

    specs: tuple[ProcessSpec, ...]
    drain_grace_s: float
    shm_dir: Path

    @property
    def targets(self) -> list[str]:
        """host:port of each decode service."""
        return [spec.target for spec in self.specs if spec.kind == "decode"]


def lay_out(files: ConfigFiles, num_prefill: int, num_decode: int, environ: Mapping[str, str] = os.environ) -> Layout:
    """Reads the configs and gives each replica its ports: the configured ones + i, or free ones where they are 0.

    Raises:
        ConfigError: a config is wrong, or two processes would listen on one port.
    """
    resolve(load_serving(files.serving, environ))
    prefill, decode = load_prefill(files.prefill, environ), load_decode(files.decode, environ)
    num_processes = num_prefill + num_decode
    prefill_specs = [_prefill_spec(files, prefill, index, num_processes) for index in range(num_prefill)]
    targets = [spec.target for spec in prefill_specs]
    decode_specs = [_decode_spec(files, decode, index, num_processes, targets) for index in range(num_decode)]
    specs = (*prefill_specs, *decode_specs)
    _refuse_shared_ports(specs)
    return Layout(specs, max(prefill.drain_grace_s, decode.drain_grace_s), Path(prefill.shm_dir))


def busy_ports(specs: Sequence[ProcessSpec]) -> list[str]:
    """What already listens where a process is to listen, one sentence a port."""
    sentences = []
    for spec in specs:
        for what, port in (("port", spec.port), ("metrics port", spec.metrics_port)):
            if not _can_listen(spec.host, port):
                sentences.append(f"{what} {port} of {spec.name} is in use on {spec.host}")
    return sentences


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _prefill_spec(files: ConfigFiles, config: PrefillServiceConfig, index: int, num_processes: int) -> ProcessSpec:
    arguments = ("--config", str(files.prefill), "--serving", str(files.serving))
    command = service_command("prefill_service", *arguments)
    return _spec("prefill", PREFILL_SERVICE, command, config, index, {"PROCESSES_ON_HOST": str(num_processes)})


def _decode_spec(
    files: ConfigFiles, config: DecodeServiceConfig, index: int, num_processes: int, prefill_targets: Sequence[str]
) -> ProcessSpec:
    """Without prefill replicas of its own, a decode service keeps the targets that its config names."""
    overrides = {"PROCESSES_ON_HOST": str(num_processes)}
    if prefill_targets:
        overrides["PREFILL_TARGETS"] = json.dumps(list(prefill_targets))
    arguments = ("--config", str(files.decode), "--serving", str(files.serving))
    command = service_command("decode_service", *arguments)
    return _spec("decode", GENERATION_SERVICE, command, config, index, overrides)


def _spec(
    kind: str,
    service: str,
    command: tuple[str, ...],
    config: ServiceConfig,
    index: int,
    overrides: Mapping[str, str],
) -> ProcessSpec:
    port, metrics_port = _replica_port(config.port, index), _replica_port(config.metrics_port, index)
    settings = {**overrides, "PORT": str(port), "METRICS_PORT": str(metrics_port)}
    return ProcessSpec(
        name=f"{kind}-{index}",
        kind=kind,
        command=command,
        host="127.0.0.1" if config.host in _ANY_ADDRESS else config.host,
        port=port,
        metrics_port=metrics_port,
        service=service,
        environment={f"BATON_{kind.upper()}__{key}": value for key, value in settings.items()},
    )


def _replica_port(first_port: int, index: int) -> int:
    return first_port + index if first_port else free_port()


def _refuse_shared_ports(specs: Sequence[ProcessSpec]) -> None:
    owners: dict[int, str] = {}
    for spec in specs:
        for port in (spec.port, spec.metrics_port):
            if port in owners:
                raise ConfigError(
                    f"{owners[port]} and {spec.name} would both listen on port {port}; "
                    "set the services' ports further apart, or start fewer replicas"
                )
            owners[port] = spec.name


def _can_listen(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError:
            return False
    return True
