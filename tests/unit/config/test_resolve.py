import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from shared.config.load import load_serving
from shared.config.resolve import ResolvedServing, ResolvedWalk, differences, resolve
from shared.config.serving import ServingConfig
from shared.ladder import Ladder


def resolved(**keys: Any) -> ResolvedServing:
    return resolve(ServingConfig(**keys))


def test_the_defaults() -> None:
    serving = resolved()
    assert serving.walks_of("prefill") == (
        ResolvedWalk("prefill", "prefill_text", 2048, Ladder((32, 64, 128, 256, 512, 1024, 2048))),
    )
    assert serving.walks_of("decode") == (
        ResolvedWalk("decode", "decode", None, Ladder((1, 2, 4, 8, 16, 32, 64))),
        ResolvedWalk("decode", "mixed", 512, Ladder((32, 64, 128, 256, 512))),
    )
    assert (serving.max_num_seqs("prefill"), serving.max_num_seqs("decode")) == (64, 64)
    assert (serving.block_size, serving.local_prefill_max_tokens) == (32, 0)
    assert (serving.long_prefill_token_threshold, serving.max_partial_prefills) == (0, 0)
    assert serving.dropped_rungs() == {}


@pytest.mark.parametrize(
    ("budget", "kept", "dropped"),
    [
        (2048, (1024, 2048), (2176,)),
        (1500, (1024, 2048), (2176,)),
        (1024, (1024,), (2048, 2176)),
        (3000, (1024, 2048, 2176), ()),
        (None, (1024, 2048, 2176), ()),
    ],
)
def test_an_explicit_ladder_is_trimmed_to_the_budget_and_never_extended(
    budget: int | None, kept: tuple[int, ...], dropped: tuple[int, ...]
) -> None:
    serving = resolved(
        max_batch_tokens={"prefill": {"prefill_text": budget}},
        prefill_token_buckets={"prefill": {"prefill_text": [1024, 2048, 2176]}},
    )
    walk = serving.walk("prefill", "prefill_text")
    assert walk.ladder == Ladder(kept, dropped)
    assert walk.step_budget == budget
    assert serving.dropped_rungs() == ({"prefill.prefill_text": dropped} if dropped else {})


@pytest.mark.parametrize(
    ("budget", "rungs"),
    [
        (8, (32,)),
        (100, (32, 64, 128)),
        (4096, (32, 64, 128, 256, 512, 1024, 2048, 4096)),
        (None, (32, 64, 128, 256, 512, 1024, 2048)),
    ],
)
def test_a_ladder_that_is_left_out_reaches_the_budget(budget: int | None, rungs: tuple[int, ...]) -> None:
    serving = resolved(max_batch_tokens={"prefill": {"prefill_text": budget}})
    assert serving.walk("prefill", "prefill_text").ladder == Ladder(rungs)


@pytest.mark.parametrize(("num_rows", "rungs"), [(1, (1,)), (4, (1, 2, 4)), (65, (1, 2, 4, 8, 16, 32, 64, 128))])
def test_a_row_ladder_that_is_left_out_reaches_the_most_rows(num_rows: int, rungs: tuple[int, ...]) -> None:
    assert resolved(max_num_seqs={"decode": num_rows}).walk("decode", "decode").ladder == Ladder(rungs)


def test_a_row_ladder_has_no_budget_and_is_not_trimmed() -> None:
    serving = resolved(
        max_num_seqs={"decode": 4},
        max_batch_tokens={"decode": 2},
        decode_batch_buckets={"decode": {"decode": [2, 4, 96]}},
    )
    assert serving.walk("decode", "decode") == ResolvedWalk("decode", "decode", None, Ladder((2, 4, 96)))


def test_a_budget_of_a_node_is_that_of_its_token_walk() -> None:
    serving = resolved(max_batch_tokens={"prefill": 100, "decode": 200})
    assert serving.walk("prefill", "prefill_text").step_budget == 100
    assert serving.walk("decode", "mixed").step_budget == 200


def test_a_walk_inside_the_combined_walk_runs_on_its_budget_and_rungs() -> None:
    serving = resolved(max_batch_tokens={"decode": {"mixed": 100}})
    assert serving.walk("decode", "prefill_text") == ResolvedWalk("decode", "prefill_text", 100, Ladder((32, 64, 128)))
    assert [walk.name for walk in serving.walks_of("decode")] == ["decode", "mixed"]


def test_a_walk_inside_the_combined_walk_may_have_rungs_of_its_own() -> None:
    serving = resolved(
        max_batch_tokens={"decode": {"mixed": 100}},
        prefill_token_buckets={"decode": {"mixed": [64, 256], "prefill_text": [48, 96, 192, 384]}},
    )
    own = ResolvedWalk("decode", "prefill_text", 100, Ladder((48, 96, 192), (384,)))
    assert serving.walk("decode", "prefill_text") == own
    assert serving.walk("decode", "mixed").ladder == Ladder((64, 256))
    assert [walk.name for walk in serving.walks_of("decode")] == ["decode", "mixed", "prefill_text"]


@pytest.mark.parametrize(("node", "name"), [("prefill", "mixed"), ("decode", "prefill"), ("encode", "decode")])
def test_there_are_no_other_walks(node: str, name: str) -> None:
    with pytest.raises(KeyError, match=f"{node}.{name}"):
        resolved().walk(node, name)


@pytest.mark.parametrize(
    ("budget", "threshold", "max_partial_prefills", "effective"),
    [
        (4096, 256, 1, 256),
        (4096, 256, 0, 4096),
        (4096, 256, 2, 4096),
        (4096, 0, 1, 4096),
        (128, 256, 1, 128),
        (None, 256, 1, None),
    ],
)
def test_one_long_prompt_at_a_time_is_budgeted_by_the_threshold(
    budget: int | None, threshold: int, max_partial_prefills: int, effective: int | None
) -> None:
    serving = resolved(
        max_batch_tokens={"prefill": {"prefill_text": budget}},
        long_prefill_token_threshold=threshold,
        max_partial_prefills=max_partial_prefills,
    )
    assert serving.effective_budget("prefill", "prefill_text") == effective


def test_the_canonical_form_holds_what_services_must_agree_on() -> None:
    serving = resolved(
        max_batch_tokens={"prefill": 48, "decode": {"mixed": None}},
        long_prefill_token_threshold=7,
        max_partial_prefills=2,
        max_num_seqs={"decode": 2},
        prefill_token_buckets={"prefill": {"prefill_text": [32, 64, 128]}, "decode": {"mixed": [32]}},
    )
    assert serving.canonical_json() == (
        '{"decode_batch_buckets":{"decode":{"decode":{"dropped":[],"rungs":[1,2]}}},'
        '"long_prefill_token_threshold":7,'
        '"max_batch_tokens":{"decode":{"mixed":null},"prefill":{"prefill_text":48}},'
        '"max_partial_prefills":2,'
        '"prefill_token_buckets":{"decode":{"mixed":{"dropped":[],"rungs":[32]}},'
        '"prefill":{"prefill_text":{"dropped":[128],"rungs":[32,64]}}},'
        '"weights":"dtype"}'
    )
    assert serving.digest() == hashlib.sha256(serving.canonical_json().encode()).hexdigest()


def test_the_digest_depends_on_what_was_resolved_and_not_on_how_it_was_written() -> None:
    written_out = {"prefill": {"prefill_text": [32, 64, 128, 256, 512, 1024, 2048]}}
    assert resolved(prefill_token_buckets=written_out).digest() == resolved().digest()
    assert resolved(max_batch_tokens={"prefill": 2047}).digest() != resolved().digest()
    assert resolved(weights="int8").digest() != resolved().digest()


def test_the_shipped_config_holds_the_defaults() -> None:
    shipped = load_serving(Path(__file__).parents[3] / "configs" / "serving.yaml", environ={})
    assert resolve(shipped) == resolved()
    assert (shipped.model, shipped.dtype, shipped.max_model_len) == ("smollm2-135m-instruct", "auto", None)


def test_equal_forms_do_not_differ() -> None:
    assert differences(resolved().canonical_json(), json.dumps(json.loads(resolved().canonical_json()), indent=2)) == []


def test_differences_name_the_key_and_both_values() -> None:
    ours = resolved(long_prefill_token_threshold=256, weights="int8")
    theirs = resolved(max_batch_tokens={"prefill": 64}, prefill_token_buckets={"decode": {"prefill_text": [512]}})
    assert differences(ours.canonical_json(), theirs.canonical_json()) == [
        ("long_prefill_token_threshold", "256", "0"),
        ("max_batch_tokens.decode.prefill_text", "(absent)", "512"),
        ("max_batch_tokens.prefill.prefill_text", "2048", "64"),
        ("prefill_token_buckets.decode.prefill_text", "(absent)", '{"dropped": [], "rungs": [512]}'),
        ("prefill_token_buckets.prefill.prefill_text.rungs", "[32, 64, 128, 256, 512, 1024, 2048]", "[32, 64]"),
        ("weights", "int8", "dtype"),
    ]


@pytest.mark.parametrize("theirs", ["", "no json", "[1]", "3", "[" * 100_000])
def test_a_peer_that_sends_no_object_differs_as_a_whole(theirs: str) -> None:
    assert differences('{"a":1}', theirs) == [("serving", '{"a":1}', theirs)]


def test_values_of_other_kinds_differ() -> None:
    assert differences('{"a":{"b":1}}', '{"a":1}') == [("a", '{"b": 1}', "1")]
    assert differences('{"a":1}', '{"a":true}') == [("a", "1", "true")]
    assert differences('{"a":null}', "{}") == [("a", "null", "(absent)")]


def test_an_offline_walk_is_trimmed_to_its_effective_budget() -> None:
    serving = resolved(
        max_batch_tokens={"prefill": 4096},
        long_prefill_token_threshold=256,
        max_partial_prefills=1,
        prefill_token_buckets={"prefill": {"prefill_text": [100, 300, 4096, 8192]}},
    )
    assert serving.walk("prefill", "prefill_text").ladder == Ladder((100, 300, 4096), dropped=(8192,))
    walk = serving.offline_walk("prefill", "prefill_text")
    assert walk == ResolvedWalk("prefill", "prefill_text", 256, Ladder((100, 300), dropped=(4096, 8192)))
    assert serving.offline_walk("decode", "mixed").step_budget == 256, "the smaller of 512 and the threshold"
