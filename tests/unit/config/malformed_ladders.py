"""Ways to get ladders wrong: name → (file, key path, reason)."""

RUNGS = "a list of ascending integers ≥ 1"

LADDERS = {
    "rungs for all": (
        "prefill_token_buckets: [32, 64]",
        "prefill_token_buckets",
        "found [32, 64]; needs a mapping with the keys prefill, decode",
    ),
    "rungs of a node": (
        "prefill_token_buckets: {prefill: [32, 64]}",
        "prefill_token_buckets.prefill",
        "found [32, 64]; needs a mapping with the key prefill_text",
    ),
    "rungs of an unknown node": (
        "prefill_token_buckets: {encode: {prefill_text: [32]}}",
        "prefill_token_buckets.encode",
        "found an unknown node; needs one of prefill, decode (did you mean `decode`?)",
    ),
    "rungs of an unknown walk": (
        "prefill_token_buckets: {decode: {mixd: [32]}}",
        "prefill_token_buckets.decode.mixd",
        "found an unknown walk; needs one of mixed, prefill_text (did you mean `mixed`?)",
    ),
    "rungs of a walk of the other node": (
        "prefill_token_buckets: {prefill: {mixed: [32]}}",
        "prefill_token_buckets.prefill.mixed",
        "found an unknown walk; needs prefill_text",
    ),
    "token rungs of a walk without packed captures": (
        "prefill_token_buckets: {decode: {decode: [32]}}",
        "prefill_token_buckets.decode.decode",
        (
            "found a walk that has no token-packed capture; needs its rungs, in rows, in "
            "decode_batch_buckets.decode.decode"
        ),
    ),
    "no rungs": (
        "prefill_token_buckets: {prefill: {prefill_text: []}}",
        "prefill_token_buckets.prefill.prefill_text",
        f"found an empty list; needs {RUNGS}",
    ),
    "null rungs": (
        "prefill_token_buckets: {prefill: {prefill_text: }}",
        "prefill_token_buckets.prefill.prefill_text",
        f"found null; needs {RUNGS}",
    ),
    "one rung that is no list": (
        "prefill_token_buckets: {prefill: {prefill_text: 2048}}",
        "prefill_token_buckets.prefill.prefill_text",
        f"found 2048; needs {RUNGS}",
    ),
    "mapping for rungs": (
        "prefill_token_buckets: {prefill: {prefill_text: {32: 64}}}",
        "prefill_token_buckets.prefill.prefill_text",
        f'found {{"32": 64}}; needs {RUNGS}',
    ),
    "rung of a fraction": (
        "prefill_token_buckets: {prefill: {prefill_text: [32, 64.5]}}",
        "prefill_token_buckets.prefill.prefill_text",
        f"found 64.5 at position 2; needs {RUNGS}",
    ),
    "rung of text": (
        'prefill_token_buckets: {decode: {mixed: ["32"]}}',
        "prefill_token_buckets.decode.mixed",
        f'found "32" at position 1; needs {RUNGS}',
    ),
    "rung that is a bool": (
        "decode_batch_buckets: {decode: {decode: [true, 64]}}",
        "decode_batch_buckets.decode.decode",
        f"found true at position 1; needs {RUNGS}",
    ),
    "rung of zero": (
        "prefill_token_buckets: {prefill: {prefill_text: [0, 32]}}",
        "prefill_token_buckets.prefill.prefill_text",
        f"found 0 at position 1; needs {RUNGS}",
    ),
    "negative rung": (
        "prefill_token_buckets: {prefill: {prefill_text: [32, -64]}}",
        "prefill_token_buckets.prefill.prefill_text",
        f"found -64 at position 2; needs {RUNGS}",
    ),
    "repeated rung": (
        "prefill_token_buckets: {prefill: {prefill_text: [32, 64, 64]}}",
        "prefill_token_buckets.prefill.prefill_text",
        f"found 64 twice; needs {RUNGS}",
    ),
    "descending rungs": (
        "prefill_token_buckets: {decode: {prefill_text: [64, 32]}}",
        "prefill_token_buckets.decode.prefill_text",
        f"found 32 after 64; needs {RUNGS}",
    ),
    "row rungs of the prefill node": (
        "decode_batch_buckets: {prefill: {prefill_text: [1]}}",
        "decode_batch_buckets.prefill",
        "found a node that runs no walk in rows; needs prefill_token_buckets.prefill",
    ),
    "row rungs of a packed walk": (
        "decode_batch_buckets: {decode: {mixed: [64]}}",
        "decode_batch_buckets.decode.mixed",
        (
            "found a walk whose capture is packed tokens; needs its rungs, in tokens, in "
            "prefill_token_buckets.decode.mixed"
        ),
    ),
    "row rungs of an unknown walk": (
        "decode_batch_buckets: {decode: {decoding: [64]}}",
        "decode_batch_buckets.decode.decoding",
        "found an unknown walk; needs decode",
    ),
    "top row rung below the default rows": (
        "decode_batch_buckets: {decode: {decode: [1, 2, 63]}}",
        "decode_batch_buckets.decode.decode",
        "found the top rung 63; needs a top rung ≥ 64, the most rows the node may run (max_num_seqs.decode)",
    ),
    "one key for a path": (
        "prefill_token_buckets.prefill.prefill_text: [32]",
        "prefill_token_buckets.prefill.prefill_text",
        ("found one key with dots in it; needs a key in a key, prefill_token_buckets: {prefill: {prefill_text: …}}"),
    ),
    "number as walk": (
        "prefill_token_buckets: {prefill: {1: [32]}}",
        "prefill_token_buckets.prefill.1",
        "found the key 1; needs a string as the key",
    ),
    "rung beyond 31 bits": (
        "prefill_token_buckets: {decode: {mixed: [512, 2147483648]}}",
        "prefill_token_buckets.decode.mixed",
        f"found 2147483648 at position 2; needs {RUNGS}, each an integer ≤ 2147483647",
    ),
    "whole rung as a fraction": (
        "prefill_token_buckets: {prefill: {prefill_text: [32.0]}}",
        "prefill_token_buckets.prefill.prefill_text",
        f"found 32.0 at position 1; needs {RUNGS}",
    ),
    "rung that is no number": (
        "prefill_token_buckets: {prefill: {prefill_text: [.nan]}}",
        "prefill_token_buckets.prefill.prefill_text",
        f"found NaN at position 1; needs {RUNGS}",
    ),
    "null rung": (
        "prefill_token_buckets: {prefill: {prefill_text: [32, ]}, decode: {mixed: [~]}}",
        "prefill_token_buckets.decode.mixed",
        f"found null at position 1; needs {RUNGS}",
    ),
    "list in the rungs": (
        "prefill_token_buckets: {prefill: {prefill_text: [[32, 64]]}}",
        "prefill_token_buckets.prefill.prefill_text",
        f"found [32, 64] at position 1; needs {RUNGS}",
    ),
    "set of rungs": (
        "prefill_token_buckets: {prefill: {prefill_text: !!set {32}}}",
        "prefill_token_buckets.prefill.prefill_text",
        f"found the set {{32}}; needs {RUNGS}",
    ),
    "null node": (
        "prefill_token_buckets: {prefill: }",
        "prefill_token_buckets.prefill",
        "found null; needs a mapping with the key prefill_text",
    ),
    "row rungs for all": (
        "decode_batch_buckets: [1, 2]",
        "decode_batch_buckets",
        "found [1, 2]; needs a mapping with the key decode",
    ),
    "top row rung below the rows": (
        "max_num_seqs: {decode: 65}\ndecode_batch_buckets: {decode: {decode: [64]}}",
        "decode_batch_buckets.decode.decode",
        "found the top rung 64; needs a top rung ≥ 65, the most rows the node may run (max_num_seqs.decode)",
    ),
}
