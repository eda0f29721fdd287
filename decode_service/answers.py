"""What clients are sent, as messages of `GenerationService`."""

from collections.abc import Callable, Iterable

from google.protobuf.duration_pb2 import Duration

from baton.v1 import generation_pb2
from decode_service.request import Delta, Finished, GenerationEvent, Started, Usage
from shared.rpc.convert import logprobs_to_proto
from shared.text.stopping import Finish, FinishReason

TextOf = Callable[[int], str]

_FINISH_REASONS = {
    FinishReason.STOP: generation_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
}


def event_to_proto(
    event: GenerationEvent, wants_token_ids: bool, text_of: TextOf
) -> generation_pb2.StreamGenerateResponse:
    """One event as a message of the stream.

    Args:
        event: what happened.
        wants_token_ids: whether the caller asked for token ids.
        text_of: what a token alone reads as.
    """
    match event:
        case Started():
            started = generation_pb2.Started(
                request_id=event.request_id,
                prompt_tokens=event.prompt_len,
                cached_tokens=event.num_cached_tokens,
                prompt_logprobs=[logprobs_to_proto(logprobs, text_of) for logprobs in event.prompt_logprobs],
            )
            return generation_pb2.StreamGenerateResponse(started=started)
        case Delta():
            delta = generation_pb2.Delta(
                index=event.index,
                text=event.text,
                token_ids=event.token_ids if wants_token_ids else (),
                logprobs=[logprobs_to_proto(logprobs, text_of) for logprobs in event.logprobs],
            )
            return generation_pb2.StreamGenerateResponse(delta=delta)
        case Finished(finish, index):
            finished = generation_pb2.Finished(
                index=index, finish_reason=_FINISH_REASONS[finish.reason], matched_stop=_matched_stop(finish)
            )
            return generation_pb2.StreamGenerateResponse(finished=finished)
        case Usage():
            return generation_pb2.StreamGenerateResponse(usage=usage_to_proto(event))


def events_to_proto(
    events: Iterable[GenerationEvent], wants_token_ids: bool, text_of: TextOf
) -> generation_pb2.GenerateResponse:
    """A whole stream as one answer. Takes long where there are many log-probabilities."""
    response = generation_pb2.GenerateResponse()
    completions: dict[int, generation_pb2.Completion] = {}
    texts: dict[int, list[str]] = {}
    for event in events:
        match event:
            case Started():
                response.request_id = event.request_id
                response.prompt_logprobs.extend(logprobs_to_proto(item, text_of) for item in event.prompt_logprobs)
            case Delta():
                completion = completions.setdefault(event.index, generation_pb2.Completion(index=event.index))
                texts.setdefault(event.index, []).append(event.text)
                completion.token_ids.extend(event.token_ids if wants_token_ids else ())
                completion.logprobs.extend(logprobs_to_proto(item, text_of) for item in event.logprobs)
            case Finished(finish, index):
                completion = completions.setdefault(index, generation_pb2.Completion(index=index))
                completion.finish_reason = _FINISH_REASONS[finish.reason]
                stop = _matched_stop(finish)
                if stop is not None:
                    completion.matched_stop.CopyFrom(stop)
            case Usage():
                response.usage.CopyFrom(usage_to_proto(event))
    for index, completion in sorted(completions.items()):
        completion.text = "".join(texts.get(index, ()))
        response.completions.append(completion)
    return response


def usage_to_proto(usage: Usage) -> generation_pb2.Usage:
    """Counts and times as a message."""
    return generation_pb2.Usage(
        prompt_tokens=usage.prompt_len,
        completion_tokens=usage.num_completion_tokens,
        cached_tokens=usage.num_cached_tokens,
        timings=generation_pb2.Timings(
            queue=_duration(usage.queue_s),
            prefill=_duration(usage.prefill_s),
            kv_transfer=_duration(usage.kv_transfer_s),
            first_token=_duration(usage.first_token_s),
            total=_duration(usage.total_s),
        ),
    )


def _matched_stop(finish: Finish) -> generation_pb2.MatchedStop | None:
    if finish.matched_token_id is not None:
        return generation_pb2.MatchedStop(token_id=finish.matched_token_id)
    if finish.matched_text is not None:
        return generation_pb2.MatchedStop(text=finish.matched_text)
    return None


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
