from structlog.testing import capture_logs

from shared.config.notice import cautions, log_resolution
from shared.config.resolve import resolve
from shared.config.serving import ServingConfig


def test_dropped_rungs_are_named_in_one_line() -> None:
    config = ServingConfig.model_validate(
        {
            "max_batch_tokens": {"prefill": 2048, "decode": 100},
            "prefill_token_buckets": {
                "prefill": {"prefill_text": [1024, 2048, 2176, 4096]},
                "decode": {"mixed": [128, 256]},
            },
        }
    )
    with capture_logs() as lines:
        log_resolution(resolve(config))
    assert lines == [
        {
            "event": "rungs_dropped",
            "reason": "no step within the budget needs them",
            "prefill.prefill_text": (2176, 4096),
            "decode.mixed": (256,),
            "log_level": "info",
        }
    ]


def test_nothing_dropped_logs_nothing() -> None:
    with capture_logs() as lines:
        log_resolution(resolve(ServingConfig()))
    assert lines == []


def test_a_mixed_budget_without_room_for_a_prompt_token_is_a_caution() -> None:
    config = ServingConfig.model_validate({"max_batch_tokens": {"decode": 64}})
    assert cautions(resolve(config)) == [
        (
            "max_batch_tokens.decode.mixed is 64 and max_num_seqs.decode is 64: when the node is full, a mixed step "
            "has no room for all decode rows and a prompt token, so rows take turns"
        )
    ]
    assert cautions(resolve(ServingConfig.model_validate({"max_batch_tokens": {"decode": 65}}))) == []
    assert cautions(resolve(ServingConfig.model_validate({"max_batch_tokens": {"decode": {"mixed": None}}}))) == []


def test_a_budget_above_the_top_rung_is_a_caution() -> None:
    config = ServingConfig.model_validate({"prefill_token_buckets": {"prefill": {"prefill_text": [1024]}}})
    with capture_logs() as lines:
        log_resolution(resolve(config))
    assert lines == [
        {
            "event": "config_caution",
            "detail": "prefill.prefill_text may run steps of 2048 tokens and its top rung is 1024: while work "
            "waits, steps are cut to the top rung; larger ones run unpadded, without a capture",
            "log_level": "warning",
        }
    ]


def test_very_many_rungs_are_a_caution() -> None:
    rungs = {"prefill": {"prefill_text": list(range(32, 2080, 32))}, "decode": {"mixed": list(range(1, 513))}}
    config = ServingConfig.model_validate({"prefill_token_buckets": rungs})
    assert cautions(resolve(config)) == ["decode.mixed has 512 rungs: warm-up prepares each one, which takes time"]
