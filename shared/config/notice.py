"""What an operator should know about a resolved config: one line for the rungs dropped, one for each oddity."""

import structlog

from shared.config.resolve import ResolvedServing

log = structlog.get_logger()

_MANY_RUNGS = 64
"""More rungs than any ladder needs: a captured one takes up to a second of warm-up."""


def cautions(resolved: ResolvedServing) -> list[str]:
    """Settings that work, but not as their owner may expect, in sentences."""
    sentences = [
        f"{walk.node}.{walk.name} may run steps of {walk.step_budget} tokens and its top rung is {walk.ladder.top}: "
        "while work waits, steps are cut to the top rung; larger ones run unpadded, without a capture"
        for walk in resolved.walks
        if walk.step_budget is not None and walk.step_budget > walk.ladder.top
    ]
    sentences += [
        f"{walk.node}.{walk.name} has {len(walk.ladder.rungs)} rungs: warm-up prepares each one, which takes time"
        for walk in resolved.walks
        if len(walk.ladder.rungs) > _MANY_RUNGS
    ]
    mixed, num_rows = resolved.walk("decode", "mixed"), resolved.max_num_seqs("decode")
    if mixed.step_budget is not None and mixed.step_budget <= num_rows:
        sentences.append(
            f"max_batch_tokens.decode.mixed is {mixed.step_budget} and max_num_seqs.decode is {num_rows}: when the "
            "node is full, a mixed step has no room for all decode rows and a prompt token, so rows take turns"
        )
    return sentences


def log_resolution(resolved: ResolvedServing) -> None:
    """Logs the rungs that trimming dropped, in one line, and a warning for each caution."""
    dropped = resolved.dropped_rungs()
    if dropped:
        log.info("rungs_dropped", reason="no step within the budget needs them", **dropped)
    for sentence in cautions(resolved):
        log.warning("config_caution", detail=sentence)
