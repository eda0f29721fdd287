"""What each service has of its own: addresses, sizes and policies (`configs/prefill.yaml`, `configs/decode.yaml`)."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, model_validator

from shared.config.schema import (
    AtLeastOne,
    AtLeastTwo,
    Distinct,
    ListOf,
    Port,
    PositiveSeconds,
    Seconds,
    StrictModel,
    Target,
    Text,
    refuse,
)

Transport = Literal["shm", "grpc", "local"]


def _at_least_one(value: tuple[Transport, ...]) -> tuple[Transport, ...]:
    if not value:
        raise refuse("an empty list", "at least one of shm, grpc, local")
    return value


class LogConfig(StrictModel):
    """What is logged, and how.

    Attributes:
        format: console for people, json for machines: one object a line.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class ServiceConfig(StrictModel):
    """Common to both services.

    Attributes:
        host: address to listen on.
        port: gRPC port; 0: any free one.
        metrics_port: port of /metrics; 0: any free one.
        threads: torch threads; None: the cores this process may use, divided by `processes_on_host`.
        processes_on_host: Baton processes that share this machine's cores.
        num_kv_blocks: blocks in the KV pool, the scratch block included.
        max_queue_len: requests that may wait for room; more are refused.
        drain_grace_s: seconds that running requests get to finish after SIGTERM.
        transports: ways to move KV that this service offers, best first.
        shm_dir: a tmpfs directory for KV pools that another process may map.
    """

    old_spellings: ClassVar[dict[str, str]] = {
        "model_kwargs.prefill_token_buckets": "found the old spelling; needs `prefill_token_buckets` (node → walk → "
        "rungs) in the config that both services share",
    }

    host: Text = "127.0.0.1"
    port: Port = 0
    metrics_port: Port = 0
    threads: AtLeastOne | None = None
    processes_on_host: AtLeastOne = 1
    num_kv_blocks: AtLeastTwo = 512
    max_queue_len: AtLeastOne = 256
    drain_grace_s: Seconds = 30.0
    log: LogConfig = LogConfig()
    transports: Annotated[tuple[Transport, ...], ListOf, Distinct, AfterValidator(_at_least_one)] = ("shm", "grpc")
    shm_dir: Text = "/dev/shm"  # noqa: S108 - a tmpfs is meant


class PrefillServiceConfig(ServiceConfig):
    """The prefill service."""

    port: Port = 50061
    metrics_port: Port = 9461


class DecodeServiceConfig(ServiceConfig):
    """The decode service.

    Attributes:
        prefill_targets: host:port of each prefill replica.
        prefill_unavailable: without a prefill replica, fail requests at once, or compute prompts locally.
        kv_load_failure: after a failed or late fetch, fail the request, or compute its prompt again.
        prefill_attempts: most tries to have one prompt computed, the first included.
        default_max_tokens: tokens to generate where the request does not say.
        request_timeout_s: seconds for a request whose caller sets no deadline.
        fetch_timeout_s: seconds for the fetch of one handle.
    """

    known_mistakes: ClassVar[dict[str, str]] = {
        "prefill_target": "found an unknown key; needs prefill_targets, a list of host:port",
    }

    port: Port = 50051
    metrics_port: Port = 9451
    prefill_targets: Annotated[tuple[Target, ...], ListOf, Distinct] = ("localhost:50061",)
    prefill_unavailable: Literal["fail", "local"] = "fail"
    kv_load_failure: Literal["fail", "recompute"] = "recompute"
    prefill_attempts: AtLeastOne = 3
    default_max_tokens: AtLeastOne = 512
    request_timeout_s: PositiveSeconds = 600.0
    fetch_timeout_s: PositiveSeconds = 10.0

    @model_validator(mode="after")
    def _prompts_are_computed_somewhere(self) -> Self:
        if not self.prefill_targets and self.prefill_unavailable == "fail":
            raise refuse(
                "an empty list",
                "at least one host:port, or prefill_unavailable: local",
                path="prefill_targets",
            )
        return self
