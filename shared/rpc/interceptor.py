"""Turns what servicers raise into gRPC statuses, and messages that cannot be parsed into INVALID_ARGUMENT.

Without it a request with invalid UTF-8 ends as INTERNAL, since gRPC parses before the servicer is called.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError

from shared.errors import BatonError, InvalidRequestError, Reason
from shared.rpc.status import status_code, status_message, trailing_metadata

log = structlog.get_logger()

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(frozen=True)
class _Malformed:
    """Stands for a request that could not be parsed, until there is a context to abort."""

    detail: str


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server; `on_status` is told how each call of Baton's own services ended."""

    def __init__(self, on_status: Callable[[str, str], None]) -> None:
        self._on_status = on_status

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or not method.startswith("/baton.v1."):
            return handler
        return self._wrap(method.rsplit("/", 1)[-1], handler)

    def _wrap(self, method: str, handler: Handler) -> Handler:
        parse = _tolerant(handler.request_deserializer)
        if handler.request_streaming:
            stream_stream = grpc.stream_stream_rpc_method_handler
            return stream_stream(
                self._streaming(method, handler.stream_stream, _checked_stream), parse, handler.response_serializer
            )
        if handler.response_streaming:
            unary_stream = grpc.unary_stream_rpc_method_handler
            return unary_stream(
                self._streaming(method, handler.unary_stream, _checked), parse, handler.response_serializer
            )
        unary = grpc.unary_unary_rpc_method_handler
        return unary(self._unary(method, handler.unary_unary), parse, handler.response_serializer)

    def _unary(self, method: str, behaviour: Any) -> Any:  # noqa: ANN401 (handlers of any message type)
        async def call(request: Any, context: Context) -> Any:  # noqa: ANN401
            status = "UNKNOWN"
            try:
                response = await behaviour(_checked(request), context)
                status = "OK"
            except asyncio.CancelledError:
                status = _why_cancelled(context)
                raise
            except BatonError as error:
                status = status_code(error).name
                await _abort(method, context, error)
            finally:
                self._on_status(method, status)
            return response

        return call

    def _streaming(self, method: str, behaviour: Any, check: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: ANN401
            status = "UNKNOWN"
            try:
                async with aclosing(behaviour(check(request), context)) as responses:
                    async for response in responses:
                        yield response
                status = "OK"
            except (asyncio.CancelledError, GeneratorExit):
                status = _why_cancelled(context)
                raise
            except BatonError as error:
                status = status_code(error).name
                await _abort(method, context, error)
            finally:
                self._on_status(method, status)

        return call


def _why_cancelled(context: Context) -> str:
    remaining_s = context.time_remaining()
    return "CANCELLED" if remaining_s is None or remaining_s > 0 else "DEADLINE_EXCEEDED"


async def _abort(method: str, context: Context, error: BatonError) -> NoReturn:
    code = status_code(error)
    log.info("call_refused", method=method, status=code.name, reason=error.reason, error=error.message)
    await context.abort(code, status_message(error), trailing_metadata(error))


def _tolerant(parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    assert parse is not None

    def tolerant(data: bytes) -> Any:  # noqa: ANN401
        try:
            return parse(data)
        except DecodeError as error:
            return _Malformed(str(error))

    return tolerant


def _checked(request: Any) -> Any:  # noqa: ANN401
    if isinstance(request, _Malformed):
        raise InvalidRequestError(
            f"the message cannot be parsed (is every string valid UTF-8?): {request.detail}",
            Reason.MALFORMED_MESSAGE,
            {"detail": request.detail},
        )
    return request


async def _checked_stream(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _checked(request)
