"""Conversions between protobuf and domain values that both services need."""

from collections.abc import Callable

from baton.v1 import generation_pb2, kv_pb2, prefill_pb2
from shared.constraints.constraint import Constraint, ConstraintKind
from shared.errors import HandleError, Reason
from shared.kv.handle import GrpcLocation, KvHandle, LocalLocation, Location, ShmLocation
from shared.kv.layout import KvLayout
from shared.sampling.logprobs import TokenLogprob, TokenLogprobs
from shared.sampling.params import SamplingParams
from shared.worker.engine import Identity


def layout_to_proto(layout: KvLayout) -> kv_pb2.KvLayout:
    """The layout as a message."""
    return kv_pb2.KvLayout(
        name=layout.name,
        dtype=layout.dtype,
        block_size=layout.block_size,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
    )


def layout_from_proto(message: kv_pb2.KvLayout) -> KvLayout:
    """The layout a message describes."""
    return KvLayout(
        name=message.name,
        dtype=message.dtype,
        block_size=message.block_size,
        num_layers=message.num_layers,
        num_kv_heads=message.num_kv_heads,
        head_dim=message.head_dim,
    )


def identity_to_proto(identity: Identity) -> prefill_pb2.ServiceIdentity:
    """The identity as a message."""
    return prefill_pb2.ServiceIdentity(
        protocol_version=identity.protocol_version,
        model_fingerprint=identity.model_fingerprint,
        layout=layout_to_proto(identity.layout),
        serving_digest=identity.serving_digest,
        serving=identity.serving_json,
    )


def identity_from_proto(message: prefill_pb2.ServiceIdentity) -> Identity:
    """The identity a message describes."""
    return Identity(
        protocol_version=message.protocol_version,
        model_fingerprint=message.model_fingerprint,
        layout=layout_from_proto(message.layout),
        serving_digest=message.serving_digest,
        serving_json=message.serving,
    )


def handle_to_proto(handle: KvHandle) -> kv_pb2.KvHandle:
    """The handle as a message."""
    message = kv_pb2.KvHandle(
        handle_id=handle.handle_id,
        epoch=handle.epoch,
        request_id=handle.request_id,
        first_token=handle.first_token,
        end_token=handle.end_token,
        is_final=handle.is_final,
        block_ids=handle.block_ids,
        block_generations=handle.block_generations,
        layout=layout_to_proto(handle.layout),
        location=_location_to_proto(handle.location),
    )
    if handle.checksum is not None:
        message.checksum = handle.checksum
    return message


def handle_from_proto(message: kv_pb2.KvHandle) -> KvHandle:
    """The handle a message describes.

    Raises:
        HandleError: its fields contradict each other, or it names a location of an unknown kind.
    """
    return KvHandle(
        handle_id=message.handle_id,
        epoch=message.epoch,
        request_id=message.request_id,
        first_token=message.first_token,
        end_token=message.end_token,
        is_final=message.is_final,
        block_ids=tuple(message.block_ids),
        block_generations=tuple(message.block_generations),
        layout=layout_from_proto(message.layout),
        location=_location_from_proto(message.location),
        checksum=message.checksum if message.HasField("checksum") else None,
    )


def sampling_to_proto(params: SamplingParams) -> generation_pb2.Sampling:
    """The parameters as a message, every number set."""
    message = generation_pb2.Sampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        logit_bias=dict(params.logit_bias),
        seed=params.seed,
        n=params.n,
    )
    match params.constraint:
        case None:
            pass
        case Constraint(ConstraintKind.CHOICES, choices=choices):
            message.choices.SetInParent()
            message.choices.values.extend(choices)
        case Constraint(kind, source):
            setattr(message, kind.value, source)
    return message


def sampling_from_proto(message: generation_pb2.Sampling, default_seed: int) -> SamplingParams:
    """The parameters a message describes; absent fields take the documented defaults.

    Raises:
        InvalidRequestError: a value is out of its bounds.
    """
    defaults = SamplingParams()
    return SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else defaults.temperature,
        top_k=message.top_k if message.HasField("top_k") else defaults.top_k,
        top_p=message.top_p if message.HasField("top_p") else defaults.top_p,
        min_p=message.min_p if message.HasField("min_p") else defaults.min_p,
        repetition_penalty=(
            message.repetition_penalty if message.HasField("repetition_penalty") else defaults.repetition_penalty
        ),
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        seed=message.seed if message.HasField("seed") else default_seed,
        n=message.n if message.HasField("n") else defaults.n,
        constraint=_constraint_from_proto(message),
    )


def logprobs_to_proto(
    logprobs: TokenLogprobs, text_of: Callable[[int], str] | None = None
) -> generation_pb2.TokenLogprobs:
    """Log-probabilities as a message; `text_of` says what a token reads as, where that is wanted."""

    def one(item: TokenLogprob) -> generation_pb2.TokenLogprob:
        text = "" if text_of is None else text_of(item.token_id)
        return generation_pb2.TokenLogprob(token_id=item.token_id, logprob=item.logprob, rank=item.rank, text=text)

    return generation_pb2.TokenLogprobs(token=one(logprobs.token), alternatives=map(one, logprobs.alternatives))


def logprobs_from_proto(message: generation_pb2.TokenLogprobs) -> TokenLogprobs:
    """The log-probabilities of a message."""

    def one(item: generation_pb2.TokenLogprob) -> TokenLogprob:
        return TokenLogprob(item.token_id, item.logprob, item.rank)

    return TokenLogprobs(one(message.token), tuple(map(one, message.alternatives)))


def _constraint_from_proto(message: generation_pb2.Sampling) -> Constraint | None:
    match message.WhichOneof("constraint"):
        case None:
            return None
        case "choices":
            return Constraint(ConstraintKind.CHOICES, choices=tuple(message.choices.values))
        case field:
            return Constraint(ConstraintKind(field), getattr(message, field))


def _location_to_proto(location: Location) -> kv_pb2.KvLocation:
    match location:
        case ShmLocation(path):
            return kv_pb2.KvLocation(shm=kv_pb2.ShmLocation(path=path))
        case GrpcLocation():
            return kv_pb2.KvLocation(grpc=kv_pb2.GrpcLocation())
        case LocalLocation():
            return kv_pb2.KvLocation(local=kv_pb2.LocalLocation())


def _location_from_proto(message: kv_pb2.KvLocation) -> Location:
    match message.WhichOneof("location"):
        case "shm":
            return ShmLocation(message.shm.path)
        case "grpc":
            return GrpcLocation()
        case "local":
            return LocalLocation()
        case other:
            raise HandleError(f"KV lies at a location of kind {other!r}, which is not served", Reason.HANDLE_UNKNOWN)
