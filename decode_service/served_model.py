"""What an engine serves, as requests are checked against it."""

from decode_service.translate import ServedModel
from shared.worker.engine import Engine


def describe_model(name: str, engine: Engine, default_max_tokens: int, max_num_seqs: int) -> ServedModel:
    """The engine's model.

    Args:
        name: as in the config.
        engine: what holds it.
        default_max_tokens: tokens to generate where a request does not say.
        max_num_seqs: completions that can be generated at a time.
    """
    config = engine.model.config
    return ServedModel(
        name=name,
        fingerprint=engine.identity.model_fingerprint,
        dtype=engine.identity.layout.dtype,
        max_model_len=config.max_model_len,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        default_max_tokens=default_max_tokens,
        max_completions=max_num_seqs,
        tokenizer=engine.tokenizer,
        constraints=engine.constraints,
    )
