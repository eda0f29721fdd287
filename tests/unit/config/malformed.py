"""Every way to get the serving config wrong, with the key and the reason that it is refused for."""

TOP_LEVEL_KEYS = (
    "model, dtype, max_model_len, kv, max_batch_tokens, long_prefill_token_threshold, max_partial_prefills, "
    "local_prefill_max_tokens, max_num_seqs, prefill_token_buckets, decode_batch_buckets"
)
RUNGS = "a list of ascending integers ≥ 1"

# name: (file, key path, reason)
MALFORMED = {
    "unknown key at the top": ("widgets: 1", "widgets", f"found an unknown key; needs one of {TOP_LEVEL_KEYS}"),
    "misspelt key at the top": (
        "max_num_seq: {decode: 4}",
        "max_num_seq",
        f"found an unknown key; needs one of {TOP_LEVEL_KEYS} (did you mean `max_num_seqs`?)",
    ),
    "key in capitals": (
        "KV: {block_size: 32}",
        "KV",
        f"found an unknown key; needs one of {TOP_LEVEL_KEYS} (did you mean `kv`?)",
    ),
    "unknown key inside": ("kv: {blocksize: 16}", "kv.blocksize", "found an unknown key; needs block_size"),
    "key that is a number": ("7: 8", "7", "found the key 7; needs a string as the key"),
    "old spelling": (
        "model_kwargs: {prefill_token_buckets: {prefill: {prefill_text: [32]}}}",
        "model_kwargs.prefill_token_buckets",
        (
            "found the old spelling; needs `prefill_token_buckets` at the top level (node → walk → rungs), for "
            "every model family"
        ),
    ),
    "old spelling as one key": (
        "model_kwargs.prefill_token_buckets: [32]",
        "model_kwargs.prefill_token_buckets",
        (
            "found the old spelling; needs `prefill_token_buckets` at the top level (node → walk → rungs), for "
            "every model family"
        ),
    ),
    "other model_kwargs": (
        "model_kwargs: {trust_remote_code: true}",
        "model_kwargs.trust_remote_code",
        "found an unknown key; needs to be left out",
    ),
    "model_kwargs that is no mapping": (
        "model_kwargs: [1]",
        "model_kwargs",
        f"found an unknown key; needs one of {TOP_LEVEL_KEYS}",
    ),
    "empty model": ('model: ""', "model", 'found ""; needs a string that is not empty'),
    "model that is a number": ("model: 7", "model", "found 7; needs a string that is not empty"),
    "unknown dtype": ("dtype: float16", "dtype", 'found "float16"; needs one of auto, float32, bfloat16'),
    "no context": ("max_model_len: 0", "max_model_len", "found 0; needs an integer ≥ 2 or null"),
    "scalar for a mapping": ("kv: 32", "kv", "found 32; needs a mapping with the key block_size"),
    "list for a mapping": ("kv: [32]", "kv", "found [32]; needs a mapping with the key block_size"),
    "nothing for a mapping": ("kv:", "kv", "found null; needs a mapping with the key block_size"),
    "block of a fraction": ("kv: {block_size: 32.0}", "kv.block_size", "found 32.0; needs an integer ≥ 1"),
    "block of text": ('kv: {block_size: "32"}', "kv.block_size", 'found "32"; needs an integer ≥ 1'),
    "block of truth": ("kv: {block_size: true}", "kv.block_size", "found true; needs an integer ≥ 1"),
    "block without end": ("kv: {block_size: .inf}", "kv.block_size", "found Infinity; needs an integer ≥ 1"),
    "block of itself": ("kv: &a {block_size: *a}", "kv.block_size", "found a mapping; needs an integer ≥ 1"),
    "budget for all": (
        "max_batch_tokens: 2048",
        "max_batch_tokens",
        "found 2048; needs a mapping with the keys prefill, decode",
    ),
    "budget of an unknown node": (
        "max_batch_tokens: {prefil: 2048}",
        "max_batch_tokens.prefil",
        "found an unknown node; needs one of prefill, decode (did you mean `prefill`?)",
    ),
    "budget of an unknown walk": (
        "max_batch_tokens: {prefill: {text: 2048}}",
        "max_batch_tokens.prefill.text",
        "found an unknown walk; needs prefill_text",
    ),
    "budget of zero": (
        "max_batch_tokens: {prefill: {prefill_text: 0}}",
        "max_batch_tokens.prefill.prefill_text",
        "found 0; needs an integer ≥ 1 or null",
    ),
    "budget that is a bool": (
        "max_batch_tokens: {decode: {mixed: true}}",
        "max_batch_tokens.decode.mixed",
        "found true; needs an integer ≥ 1 or null",
    ),
    "negative budget of a node": (
        "max_batch_tokens: {decode: -1}",
        "max_batch_tokens.decode",
        "found -1; needs an integer ≥ 1, or a mapping with the key mixed",
    ),
    "null budget of a node": (
        "max_batch_tokens: {prefill: null}",
        "max_batch_tokens.prefill",
        "found null; needs an integer ≥ 1, or a mapping with the key prefill_text",
    ),
    "bool budget of a node": (
        "max_batch_tokens: {prefill: true}",
        "max_batch_tokens.prefill",
        "found true; needs an integer ≥ 1, or a mapping with the key prefill_text",
    ),
    "list of budgets": (
        "max_batch_tokens: {prefill: [2048]}",
        "max_batch_tokens.prefill",
        "found [2048]; needs an integer ≥ 1, or a mapping with the key prefill_text",
    ),
    "budget of decode.decode": (
        "max_batch_tokens: {decode: {decode: 64}}",
        "max_batch_tokens.decode.decode",
        "found a budget on a walk that has none, as its rows have one token each; needs max_num_seqs.decode instead",
    ),
    "budget of a part of a combined walk": (
        "max_batch_tokens: {decode: {prefill_text: 64}}",
        "max_batch_tokens.decode.prefill_text",
        (
            "found a budget on a walk inside the combined walk `mixed`, whose budget it shares; needs "
            "max_batch_tokens.decode.mixed instead"
        ),
    ),
    "negative threshold": (
        "long_prefill_token_threshold: -1",
        "long_prefill_token_threshold",
        "found -1; needs an integer ≥ 0",
    ),
    "null threshold": (
        "long_prefill_token_threshold: null",
        "long_prefill_token_threshold",
        "found null; needs an integer ≥ 0",
    ),
    "negative partial prefills": (
        "max_partial_prefills: -2",
        "max_partial_prefills",
        "found -2; needs an integer ≥ 0",
    ),
    "negative local prefill": (
        "local_prefill_max_tokens: -1",
        "local_prefill_max_tokens",
        "found -1; needs an integer ≥ 0 or null",
    ),
    "no rows": ("max_num_seqs: {prefill: 0}", "max_num_seqs.prefill", "found 0; needs an integer ≥ 1"),
    "rows for all": ("max_num_seqs: 64", "max_num_seqs", "found 64; needs a mapping with the keys prefill, decode"),
    "rows of an unknown node": (
        "max_num_seqs: {decoder: 4}",
        "max_num_seqs.decoder",
        "found an unknown node; needs one of prefill, decode (did you mean `decode`?)",
    ),
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
    "empty model_kwargs": (
        "model_kwargs: {}",
        "model_kwargs",
        f"found an unknown key; needs one of {TOP_LEVEL_KEYS}",
    ),
    "old spelling below an old spelling's key": (
        "model_kwargs: &a {model_kwargs: *a}",
        "model_kwargs.model_kwargs",
        "found an unknown key; needs to be left out",
    ),
    "one key for a path": (
        "prefill_token_buckets.prefill.prefill_text: [32]",
        "prefill_token_buckets.prefill.prefill_text",
        ("found one key with dots in it; needs a key in a key, prefill_token_buckets: {prefill: {prefill_text: …}}"),
    ),
    "one key for a path inside": (
        "max_batch_tokens: {prefill.prefill_text: 32}",
        "max_batch_tokens.prefill.prefill_text",
        "found one key with dots in it; needs a key in a key, prefill: {prefill_text: …}",
    ),
    "empty key": ('"": 1', '""', f"found an unknown key; needs one of {TOP_LEVEL_KEYS}"),
    "key with a line end": (
        '"a\\nb": 1',
        '"a\\nb"',
        f"found an unknown key; needs one of {TOP_LEVEL_KEYS}",
    ),
    "long key": ("? " + "x" * 200, f'"{"x" * 56}...', f"found an unknown key; needs one of {TOP_LEVEL_KEYS}"),
    "null key": ("~: 1", "null", "found the key null; needs a string as the key"),
    "bool key": ("true: 1", "true", "found the key true; needs a string as the key"),
    "list as key": ("[a, b]: 1", '["a", "b"]', 'found the key ["a", "b"]; needs a string as the key'),
    "number as walk": (
        "prefill_token_buckets: {prefill: {1: [32]}}",
        "prefill_token_buckets.prefill.1",
        "found the key 1; needs a string as the key",
    ),
    "model that is a date": (
        "model: 2024-01-31",
        "model",
        "found the date 2024-01-31; needs a string that is not empty",
    ),
    "model of half a character": (
        'model: "\\ud800"',
        "model",
        'found "\\ud800"; needs a string that is not empty',
    ),
    "block beyond 31 bits": (
        "kv: {block_size: 2147483648}",
        "kv.block_size",
        "found 2147483648; needs an integer ≤ 2147483647",
    ),
    "block beyond all bits": (
        f"kv: {{block_size: 0x{'f' * 5000}}}",
        "kv.block_size",
        "found a value of type int; needs an integer ≤ 2147483647",
    ),
    "budget beyond 31 bits": (
        "max_batch_tokens: {decode: {mixed: 18446744073709551616}}",
        "max_batch_tokens.decode.mixed",
        "found 18446744073709551616; needs an integer ≤ 2147483647",
    ),
    "budget of a node beyond 31 bits": (
        "max_batch_tokens: {decode: 2147483648}",
        "max_batch_tokens.decode",
        "found 2147483648; needs an integer ≤ 2147483647",
    ),
    "rung beyond 31 bits": (
        "prefill_token_buckets: {decode: {mixed: [512, 2147483648]}}",
        "prefill_token_buckets.decode.mixed",
        f"found 2147483648 at position 2; needs {RUNGS}, each an integer ≤ 2147483647",
    ),
    "whole budget as a fraction": (
        "max_batch_tokens: {prefill: 2048.0}",
        "max_batch_tokens.prefill",
        "found 2048.0; needs an integer ≥ 1, or a mapping with the key prefill_text",
    ),
    "budget that is no number": (
        "max_batch_tokens: {prefill: {prefill_text: .nan}}",
        "max_batch_tokens.prefill.prefill_text",
        "found NaN; needs an integer ≥ 1 or null",
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
    "null rows": ("max_num_seqs:", "max_num_seqs", "found null; needs a mapping with the keys prefill, decode"),
    "list of rows": (
        "max_num_seqs: [64, 64]",
        "max_num_seqs",
        "found [64, 64]; needs a mapping with the keys prefill, decode",
    ),
    "row rungs for all": (
        "decode_batch_buckets: [1, 2]",
        "decode_batch_buckets",
        "found [1, 2]; needs a mapping with the key decode",
    ),
    "bool threshold": (
        "long_prefill_token_threshold: false",
        "long_prefill_token_threshold",
        "found false; needs an integer ≥ 0",
    ),
    "top row rung below the rows": (
        "max_num_seqs: {decode: 65}\ndecode_batch_buckets: {decode: {decode: [64]}}",
        "decode_batch_buckets.decode.decode",
        "found the top rung 64; needs a top rung ≥ 65, the most rows the node may run (max_num_seqs.decode)",
    ),
}
