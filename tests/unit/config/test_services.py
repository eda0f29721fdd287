from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from shared.config.load import load_decode, load_prefill
from shared.config.services import DecodeServiceConfig, PrefillServiceConfig
from shared.errors import ConfigError

COMMON = {
    "unknown key": ("prot: 1", "prot", "found an unknown key; needs one of host, port, "),
    "ladders, in the old spelling": (
        "model_kwargs: {prefill_token_buckets: {prefill: {prefill_text: [32]}}}",
        "model_kwargs.prefill_token_buckets",
        (
            "found the old spelling; needs `prefill_token_buckets` (node → walk → rungs) in the config that both "
            "services share"
        ),
    ),
    "huge pool": ("num_kv_blocks: 2147483648", "num_kv_blocks", "found 2147483648; needs an integer ≤ 2147483647"),
    "port too high": ("port: 65536", "port", "found 65536; needs a port from 0 (any free one) to 65535"),
    "port of text": ('port: "50061"', "port", 'found "50061"; needs a port'),
    "negative metrics port": ("metrics_port: -1", "metrics_port", "found -1; needs a port"),
    "no host": ('host: ""', "host", 'found ""; needs a string that is not empty'),
    "no threads": ("threads: 0", "threads", "found 0; needs an integer ≥ 1 or null"),
    "no processes": ("processes_on_host: null", "processes_on_host", "found null; needs an integer ≥ 1"),
    "only the scratch block": ("num_kv_blocks: 1", "num_kv_blocks", "found 1; needs an integer ≥ 2"),
    "no queue": ("max_queue_len: 0", "max_queue_len", "found 0; needs an integer ≥ 1"),
    "negative grace": ("drain_grace_s: -1", "drain_grace_s", "found -1; needs seconds ≥ 0"),
    "endless grace": ("drain_grace_s: .inf", "drain_grace_s", "found Infinity; needs seconds ≥ 0"),
    "grace that is no number": ("drain_grace_s: .nan", "drain_grace_s", "found NaN; needs seconds ≥ 0"),
    "grace that is a bool": ("drain_grace_s: true", "drain_grace_s", "found true; needs seconds ≥ 0"),
    "unknown level": ("log: {level: trace}", "log.level", 'found "trace"; needs one of debug, info, warning, error'),
    "log of text": ("log: info", "log", 'found "info"; needs a mapping with the keys level, format'),
    "one transport": ("transports: shm", "transports", 'found "shm"; needs a list of one of shm, grpc, local'),
    "no transport": ("transports: []", "transports", "found an empty list; needs at least one of shm, grpc, local"),
    "unknown transport": ("transports: [shm, rdma]", "transports[1]", 'found "rdma"; needs one of shm, grpc, local'),
    "transport twice": ("transports: [grpc, shm, grpc]", "transports", 'found "grpc" twice; needs different values'),
}
DECODE_ONLY = {
    "target of a wrong name": (
        "prefill_target: a:1",
        "prefill_target",
        "found an unknown key; needs prefill_targets, a",
    ),
    "one target": ("prefill_targets: a:1", "prefill_targets", 'found "a:1"; needs a list of host:port'),
    "no port": ("prefill_targets: [localhost]", "prefill_targets[0]", 'found "localhost"; needs host:port'),
    "no host": ('prefill_targets: [":1"]', "prefill_targets[0]", 'found ":1"; needs host:port'),
    "port out of range": ("prefill_targets: [a:1, a:65536]", "prefill_targets[1]", 'found "a:65536"; needs host:port'),
    "port in other digits": ("prefill_targets: [a:٣]", "prefill_targets[0]", 'found "a:٣"; needs host:port'),
    "space": ('prefill_targets: ["a b:1"]', "prefill_targets[0]", 'found "a b:1"; needs host:port'),
    "target twice": ("prefill_targets: [a:1, a:1]", "prefill_targets", 'found "a:1" twice; needs different values'),
    "nowhere to compute prompts": (
        "prefill_targets: []",
        "prefill_targets",
        "found an empty list; needs at least one host:port, or prefill_unavailable: local",
    ),
    "unknown policy": ("kv_load_failure: retry", "kv_load_failure", 'found "retry"; needs one of fail, recompute'),
    "no attempt": ("prefill_attempts: 0", "prefill_attempts", "found 0; needs an integer ≥ 1"),
    "no tokens": ("default_max_tokens: 0", "default_max_tokens", "found 0; needs an integer ≥ 1"),
    "no time": ("request_timeout_s: 0", "request_timeout_s", "found 0; needs seconds > 0"),
    "no time to fetch": ("fetch_timeout_s: 0.0", "fetch_timeout_s", "found 0.0; needs seconds > 0"),
}


def refusal(load: Callable[..., object], file: Path, text: str) -> str:
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(file, environ={})
    return refused.value.message


@pytest.mark.parametrize("load", [load_prefill, load_decode])
@pytest.mark.parametrize("name", COMMON)
def test_what_both_services_refuse(load: Callable[..., object], name: str, tmp_path: Path) -> None:
    text, key, reason = COMMON[name]
    file = tmp_path / "service.yaml"
    assert refusal(load, file, text).startswith(f"{file}: {key}: {reason}")


@pytest.mark.parametrize("name", DECODE_ONLY)
def test_what_the_decode_service_refuses(name: str, tmp_path: Path) -> None:
    text, key, reason = DECODE_ONLY[name]
    file = tmp_path / "decode.yaml"
    assert refusal(load_decode, file, text).startswith(f"{file}: {key}: {reason}")


def test_the_prefill_service_has_no_key_of_the_decode_service(tmp_path: Path) -> None:
    file = tmp_path / "prefill.yaml"
    assert refusal(load_prefill, file, "prefill_targets: [a:1]").startswith(
        f"{file}: prefill_targets: found an unknown"
    )


def test_a_decode_service_that_computes_prompts_itself_needs_no_target(tmp_path: Path) -> None:
    file = tmp_path / "decode.yaml"
    file.write_text("prefill_targets: []\nprefill_unavailable: local\nrequest_timeout_s: 5")
    config = load_decode(file, environ={})
    assert config.prefill_targets == ()
    assert config.request_timeout_s == 5


def test_targets_may_be_ipv6_or_a_resolver_s(tmp_path: Path) -> None:
    file = tmp_path / "decode.yaml"
    file.write_text('prefill_targets: ["[::1]:50061", "dns:///prefill:50061"]')
    assert load_decode(file, environ={}).prefill_targets == ("[::1]:50061", "dns:///prefill:50061")


def test_the_services_have_different_ports() -> None:
    prefill, decode = PrefillServiceConfig(), DecodeServiceConfig()
    assert len({prefill.port, prefill.metrics_port, decode.port, decode.metrics_port}) == 4


def test_config_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        PrefillServiceConfig().port = 1  # type: ignore[misc]
