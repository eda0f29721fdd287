"""gRPC channel and server options, with the reason for each number.

Keepalive: a peer that is dead or hangs is noticed within 5 s + 4 s. What bounds the wait for a ping's answer is
`grpc.http2.ping_timeout_ms` (60 s by default); `grpc.keepalive_timeout_ms` alone does not. The server's option that
permits pings on a connection without data is `grpc.http2.min_ping_interval_without_data_ms`.
"""

ChannelOptions = list[tuple[str, int | str]]

_PING_INTERVAL_MS = 5_000
_PING_TIMEOUT_MS = 4_000

MAX_EMBEDDINGS_BYTES = 64 << 20
"""Largest data of an embeddings prompt: a full context (8,192 × 2,048 float32)."""

MAX_REQUEST_BYTES = MAX_EMBEDDINGS_BYTES + (1 << 20)
"""Largest request: such a prompt, and room for all else in it.

It is held while it waits, so a queue of them takes `max_queue_len` times as much memory: lower that where prompts are
embeddings and callers are not trusted to be few.
"""

MAX_RESPONSE_BYTES = 8 << 20
"""Largest response: KV goes in 1 MiB messages; log-probabilities of a long prompt need a few."""

MAX_CONCURRENT_STREAMS = 1024
"""Streams a connection: more than the queue and the running rows of a service together by default."""


def channel_options() -> ChannelOptions:
    """Options of a channel to another service."""
    return [
        *_keepalive(),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
        # Two replicas on one host must not share a connection that one of them owns.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def server_options() -> ChannelOptions:
    """Options of a service's server."""
    return [
        *_keepalive(),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
        # A port that another process listens on is an error, not a silent half of the connections.
        ("grpc.so_reuseport", 0),
    ]


def _keepalive() -> ChannelOptions:
    return [
        ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
