"""One list is set; everything else in the text stays as it is."""

from pathlib import Path

import pytest

from shared.config.edit import with_list
from shared.config.yaml import parse
from shared.errors import ConfigError

ROOT = Path(__file__).parents[3]
KEY = ("prefill_token_buckets", "prefill", "prefill_text")
RUNGS = [8, 24, 2048]

EDITS = {
    "flow list": (
        "prefill_token_buckets:\n  prefill:\n    prefill_text: [32,  64]   # doubles\n    # end\nmodel:   a\n",
        "prefill_token_buckets:\n  prefill:\n    prefill_text: [8, 24, 2048]   # doubles\n    # end\nmodel:   a\n",
    ),
    "flow list on a line of its own": (
        "prefill_token_buckets:\n  prefill:\n    prefill_text:\n      [32, 64]\n",
        "prefill_token_buckets:\n  prefill:\n    prefill_text:\n      [8, 24, 2048]\n",
    ),
    "flow list of many lines": (
        "prefill_token_buckets:\n  prefill:\n    prefill_text: [  # ours\n      32,  # small\n      64,\n    ] # end\n",
        "prefill_token_buckets:\n  prefill:\n    # ours\n    # small\n    prefill_text: [8, 24, 2048] # end\n",
    ),
    "block list": (
        "prefill_token_buckets:\n  prefill:\n    prefill_text:\n    - 32\n    - 64\n\n# next\nmodel: a\n",
        "prefill_token_buckets:\n  prefill:\n    prefill_text: [8, 24, 2048]\n\n# next\nmodel: a\n",
    ),
    "block list with comments": (
        (
            "prefill_token_buckets:\n  prefill:\n    # above\n    prefill_text:  # ours\n      # first\n"
            "      - 32  # small\n      - 64  # top\n    # below\n"
        ),
        (
            "prefill_token_buckets:\n  prefill:\n    # above\n    # ours\n    # first\n    # small\n"
            "    prefill_text: [8, 24, 2048]  # top\n    # below\n"
        ),
    ),
    "flow mapping": (
        "model: 'a'\nprefill_token_buckets: { prefill: {prefill_text: [32]}, decode: {mixed: [64]} }\n",
        "model: 'a'\nprefill_token_buckets: { prefill: {prefill_text: [8, 24, 2048]}, decode: {mixed: [64]} }\n",
    ),
    "walk missing from a flow mapping": (
        "prefill_token_buckets: {prefill: {}, decode: {mixed: [64]}}\n",
        "prefill_token_buckets: {prefill: {prefill_text: [8, 24, 2048]}, decode: {mixed: [64]}}\n",
    ),
    "node missing from a flow mapping": (
        "prefill_token_buckets: {decode: {mixed: [64]}}  # ours\n",
        "prefill_token_buckets: {decode: {mixed: [64]}, prefill: {prefill_text: [8, 24, 2048]}}  # ours\n",
    ),
    "node missing from a block mapping": (
        "prefill_token_buckets:\n    decode:\n        # rows\n        mixed: [64]  # ours\n\n# last\n",
        (
            "prefill_token_buckets:\n    decode:\n        # rows\n        mixed: [64]  # ours\n"
            "    prefill:\n      prefill_text: [8, 24, 2048]\n\n# last\n"
        ),
    ),
    "all missing": (
        "# ours\nmodel: a\nkv: {block_size: 32}  # tokens\n",
        (
            "# ours\nmodel: a\nkv: {block_size: 32}  # tokens\nprefill_token_buckets:\n  prefill:\n"
            "    prefill_text: [8, 24, 2048]\n"
        ),
    ),
    "all missing, blank lines between keys": (
        "model: a\n\nkv:\n  block_size: 32\n\n# end\n",
        (
            "model: a\n\nkv:\n  block_size: 32\n\nprefill_token_buckets:\n  prefill:\n    prefill_text: [8, 24, 2048]\n"
            "\n# end\n"
        ),
    ),
    "all missing, last value left out": (
        "model: a\nlocal_prefill_max_tokens:\n# end\n",
        (
            "model: a\nlocal_prefill_max_tokens:\nprefill_token_buckets:\n  prefill:\n    prefill_text: [8, 24, 2048]\n"
            "# end\n"
        ),
    ),
    "all missing, no line end": (
        "model: a",
        "model: a\nprefill_token_buckets:\n  prefill:\n    prefill_text: [8, 24, 2048]\n",
    ),
    "document marks": (
        "%YAML 1.2\n---\nmodel: a\n...\n",
        "%YAML 1.2\n---\nmodel: a\nprefill_token_buckets:\n  prefill:\n    prefill_text: [8, 24, 2048]\n...\n",
    ),
    "nothing there": ("{}", "{prefill_token_buckets: {prefill: {prefill_text: [8, 24, 2048]}}}"),
    "everything in braces": (
        '{"model": "a",\n "kv": {"block_size": 32},\n}\n',
        (
            '{"model": "a",\n "kv": {"block_size": 32}, '
            "prefill_token_buckets: {prefill: {prefill_text: [8, 24, 2048]}},\n}\n"
        ),
    ),
    "line ends of Windows": (
        "model: a\r\nprefill_token_buckets:\r\n  prefill:\r\n    prefill_text:\r\n    - 32  # small\r\n    - 64\r\n",
        ("model: a\r\nprefill_token_buckets:\r\n  prefill:\r\n    # small\r\n    prefill_text: [8, 24, 2048]\r\n"),
    ),
    "missing, with line ends of Windows": (
        "model: a\r\n\r\ndtype: auto\r\n",
        (
            "model: a\r\n\r\ndtype: auto\r\n\r\nprefill_token_buckets:\r\n  prefill:\r\n"
            "    prefill_text: [8, 24, 2048]\r\n"
        ),
    ),
    "letters of more than one byte": (
        "# Größe – 大\nprefill_token_buckets: {prefill: {prefill_text: [32]}} # 大\n",
        "# Größe – 大\nprefill_token_buckets: {prefill: {prefill_text: [8, 24, 2048]}} # 大\n",
    ),
    "an alias of the old list's neighbour": (
        "max_num_seqs: {prefill: &n 64, decode: *n}\nprefill_token_buckets: {prefill: {prefill_text: [*n]}}\n",
        "max_num_seqs: {prefill: &n 64, decode: *n}\nprefill_token_buckets: {prefill: {prefill_text: [8, 24, 2048]}}\n",
    ),
    "the same rungs": (
        "prefill_token_buckets: {prefill: {prefill_text: [8, 24, 2048]}}",
        "prefill_token_buckets: {prefill: {prefill_text: [8, 24, 2048]}}",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_the_list_is_set_and_the_rest_stays(name: str) -> None:
    before, after = EDITS[name]
    assert with_list(before, KEY, RUNGS, "serving.yaml") == after


SHARED = {
    "a list with two names": ("prefill_token_buckets: {prefill: {prefill_text: &r [64]}, decode: {mixed: *r}}"),
    "a node with two names": ("prefill_token_buckets: {prefill: &p {prefill_text: [64]}, decode: *p}"),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_list_that_another_key_shares_is_not_set(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_list(SHARED[name], KEY, RUNGS, "serving.yaml")
    assert refused.value.message == (
        "serving.yaml: prefill_token_buckets.prefill.prefill_text: found a form that cannot be edited without changing "
        "more; needs the list to be pasted by hand"
    )


def test_of_the_shipped_config_one_line_changes() -> None:
    text = (ROOT / "configs" / "serving.yaml").read_text()
    edited = with_list(text, KEY, RUNGS, "serving.yaml")
    lines = list(zip(text.splitlines(), edited.splitlines(), strict=True))
    assert [pair for pair in lines if pair[0] != pair[1]] == [
        ("    prefill_text: [32, 64, 128, 256, 512, 1024, 2048]", "    prefill_text: [8, 24, 2048]")
    ]


def test_a_walk_that_the_shipped_config_leaves_out_is_added() -> None:
    text = (ROOT / "configs" / "serving.yaml").read_text()
    key = ("prefill_token_buckets", "decode", "prefill_text")
    edited = with_list(text, key, RUNGS, "serving.yaml")
    added = "    mixed: [32, 64, 128, 256, 512]\n    prefill_text: [8, 24, 2048]\n"
    assert edited == text.replace("    mixed: [32, 64, 128, 256, 512]\n", added)
    value = parse(edited, "")
    assert isinstance(value, dict)
    assert value["prefill_token_buckets"]["decode"] == {"mixed": [32, 64, 128, 256, 512], "prefill_text": RUNGS}
