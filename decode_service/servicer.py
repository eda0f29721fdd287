"""`baton.v1.GenerationService`: translates messages to the generator's values and back, and nothing else."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import grpc
import structlog

from baton.v1 import generation_pb2, generation_pb2_grpc
from decode_service.answers import event_to_proto, events_to_proto
from decode_service.generator import Generator
from decode_service.kv_links import KvLinks
from decode_service.replicas import ReplicaSet
from decode_service.request import GenerationEvent, GenerationRequest, Started, Usage
from decode_service.translate import (
    AnyGenerateRequest,
    ServedModel,
    check_answer_len,
    check_model,
    check_token_ids,
    encode_chat,
    encode_text,
    model_to_proto,
    request_from_proto,
)
from shared.constraints.turns import Turns
from shared.errors import InvalidRequestError, Reason
from shared.rpc.gate import ReadyGate
from shared.worker.ledger import BlockLedger

log = structlog.get_logger()

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True)
class DecodeCore:
    """What serves calls once the service is warm."""

    model: ServedModel
    generator: Generator
    replicas: ReplicaSet
    links: KvLinks
    ledger: BlockLedger


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """See protos/baton/v1/generation.proto."""

    def __init__(self, gate: ReadyGate[DecodeCore]) -> None:
        self._gate = gate
        self._constraint_turns = Turns()

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> generation_pb2.GenerateResponse:
        """The whole completion in one answer."""
        core = self._gate.enter()
        wanted = await self._read(partial(_unary_request, request, core.model), request)
        async with aclosing(_generate(core, wanted, context)) as events:
            answer = [event async for event in events]
        wants_token_ids, text_of = request.output.token_ids, core.model.text_of
        if wanted.logprobs is None and wanted.prompt_logprobs is None:
            return events_to_proto(answer, wants_token_ids, text_of)
        return await asyncio.to_thread(events_to_proto, answer, wants_token_ids, text_of)

    async def StreamGenerate(
        self, request: generation_pb2.StreamGenerateRequest, context: Context
    ) -> AsyncGenerator[generation_pb2.StreamGenerateResponse]:
        """The completion as it is generated."""
        core = self._gate.enter()
        wanted = await self._read(partial(request_from_proto, request, core.model), request)
        async with aclosing(_generate(core, wanted, context)) as events:
            async for event in events:
                if isinstance(event, Started) and event.prompt_logprobs:
                    yield await asyncio.to_thread(event_to_proto, event, request.output.token_ids, core.model.text_of)
                else:
                    yield event_to_proto(event, request.output.token_ids, core.model.text_of)

    async def _read(self, read: Callable[[], GenerationRequest], message: AnyGenerateRequest) -> GenerationRequest:
        """Has a request read in a thread."""
        if message.sampling.WhichOneof("constraint") is None:
            return await asyncio.to_thread(read)
        return await self._constraint_turns.run(read)

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, context: Context
    ) -> generation_pb2.TokenizeResponse:
        """The token ids of a text, or of a conversation."""
        model = self._gate.enter().model
        check_model(request.model, model)
        match request.WhichOneof("prompt"):
            case "text":
                token_ids = await asyncio.to_thread(encode_text, request.text, model)
            case "chat":
                token_ids = await asyncio.to_thread(encode_chat, request.chat, model)
            case _:
                raise InvalidRequestError("needs text or chat", Reason.PROMPT_MISSING, {"field": "prompt"})
        return generation_pb2.TokenizeResponse(token_ids=token_ids)

    async def Detokenize(
        self, request: generation_pb2.DetokenizeRequest, context: Context
    ) -> generation_pb2.DetokenizeResponse:
        """The text of token ids."""
        model = self._gate.enter().model
        check_model(request.model, model)
        check_token_ids(request.token_ids, model, "token_ids")
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        text = await asyncio.to_thread(model.tokenizer.decode, list(request.token_ids), skip)
        return generation_pb2.DetokenizeResponse(text=text)

    async def GetModel(
        self, request: generation_pb2.GetModelRequest, context: Context
    ) -> generation_pb2.GetModelResponse:
        """What is served here."""
        model = self._gate.enter().model
        check_model(request.model, model)
        return model_to_proto(model)


def _unary_request(message: generation_pb2.GenerateRequest, model: ServedModel) -> GenerationRequest:
    request = request_from_proto(message, model)
    check_answer_len(request)
    return request


async def _generate(core: DecodeCore, wanted: GenerationRequest, context: Context) -> AsyncGenerator[GenerationEvent]:
    """The generator's events, with the request id on every log line, and one line when it has ended."""
    with structlog.contextvars.bound_contextvars(request_id=wanted.request_id):
        is_done = False
        try:
            async with aclosing(core.generator.generate(wanted, context.time_remaining())) as events:
                async for event in events:
                    if isinstance(event, Usage):
                        is_done = True
                        _log_usage(event)
                    yield event
        finally:
            if not is_done:
                log.info("request_not_done", prompt_tokens=wanted.prompt_len)


def _log_usage(usage: Usage) -> None:
    log.info(
        "request_done",
        prompt_tokens=usage.prompt_len,
        completion_tokens=usage.num_completion_tokens,
        cached_tokens=usage.num_cached_tokens,
        queue_s=round(usage.queue_s, 4),
        prefill_s=round(usage.prefill_s, 4),
        kv_transfer_s=round(usage.kv_transfer_s, 4),
        ttft_s=round(usage.first_token_s, 4),
        total_s=round(usage.total_s, 4),
    )
