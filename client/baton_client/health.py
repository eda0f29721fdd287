"""Readiness by grpc.health.v1.

The empty service name asks whether a process is alive, the name of a service whether that service is ready.
"""

import time

import grpc

from baton_client._wire import HEALTH_CHECK_METHOD, encode_health_request, is_serving
from baton_client.errors import error_from_rpc

GENERATION_SERVICE = "baton.v1.GenerationService"
PREFILL_SERVICE = "baton.v1.PrefillService"

POLL_INTERVAL_S = 0.1
CHECK_TIMEOUT_S = 5.0
_NOT_READY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.NOT_FOUND)


def check(channel: grpc.Channel, service: str, timeout: float) -> bool:
    """Whether the server says that `service` is ready; False if it cannot be reached or does not know it.

    Raises:
        BatonClientError: the server answers something else, such as that it has no health service.
    """
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(HEALTH_CHECK_METHOD)
    try:
        return is_serving(call(encode_health_request(service), timeout=timeout))
    except grpc.RpcError as error:
        return _not_ready(error)


async def check_async(channel: grpc.aio.Channel, service: str, timeout: float) -> bool:  # noqa: ASYNC109 (gRPC's own deadline)
    """As `check`, for asyncio."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(HEALTH_CHECK_METHOD)
    try:
        return is_serving(await call(encode_health_request(service), timeout=timeout))
    except grpc.RpcError as error:
        return _not_ready(error)


def poll_timeout(deadline: float) -> float:
    """Seconds for one of the checks that are repeated until `deadline`, a time of `time.monotonic`; never nothing."""
    return min(CHECK_TIMEOUT_S, max(POLL_INTERVAL_S, deadline - time.monotonic()))


def _not_ready(error: grpc.RpcError) -> bool:
    failure = error_from_rpc(error)
    if failure.status in _NOT_READY:
        return False
    raise failure from error
