import itertools
from pathlib import Path

import grpc
import pytest

from baton_client.targets import channel_options, parse_targets, turns


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("a:1", ("a:1",)),
        (" a:1, b:2,", ("a:1", "b:2")),
        (["a:1", "ipv4:1.2.3.4:5,6.7.8.9:5"], ("a:1", "ipv4:1.2.3.4:5,6.7.8.9:5")),
        (
            "10.0.0.1:65535,[::1]:1,[fe80::1%eth0]:2,a_b.c-d:3",
            ("10.0.0.1:65535", "[::1]:1", "[fe80::1%eth0]:2", "a_b.c-d:3"),
        ),
        ("unix:/run/baton,dns:///decode:50051", ("unix:/run/baton", "dns:///decode:50051")),
    ],
)
def test_targets_are_a_string_with_commas_or_a_sequence(given: str | list[str], parsed: tuple[str, ...]) -> None:
    assert parse_targets(given) == parsed


@pytest.mark.parametrize(
    "given",
    ["foo", "a:1,foo", ["foo"], "foo:", ":1", "foo:bar", "foo:0", "foo:65536", "http://foo:1", "::1:1", "a b:1"],
)
def test_a_target_that_is_none_is_refused(given: str | list[str]) -> None:
    with pytest.raises(ValueError, match=r"target '.*' needs host:port"):
        parse_targets(given)


@pytest.mark.parametrize("given", ["", " , ", []])
def test_no_target_is_refused(given: str | list[str]) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_targets(given)


def test_turns_start_anywhere_and_take_every_target() -> None:
    starts = set()
    for _ in range(200):
        first, second, third = (turn % 3 for turn in itertools.islice(turns(3), 3))
        assert (second, third) == ((first + 1) % 3, (first + 2) % 3)
        starts.add(first)
    assert starts == {0, 1, 2}


def test_grpc_knows_every_option() -> None:
    """An option with a name that gRPC does not know is ignored in silence."""
    (library,) = (Path(grpc.__file__).parent / "_cython").glob("cygrpc*.so")
    core = library.read_bytes()
    for name, _ in channel_options("localhost:1"):
        assert name.encode() in core, name


def test_a_ping_is_waited_for_as_long_as_a_keepalive() -> None:
    """gRPC goes by the ping time-out, which is 60 s unless it is set: a peer that hangs was noticed so much later."""
    options = dict(channel_options("localhost:1"))
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"] == 10_000


@pytest.mark.parametrize("target", ["localhost:1", "127.0.0.1:1", "[::1]:1"])
def test_no_proxy_for_the_machine_itself(target: str) -> None:
    assert ("grpc.enable_http_proxy", 0) in channel_options(target)
    assert "grpc.enable_http_proxy" not in dict(channel_options("example.org:1"))
