"""Ways to get keys, budgets and limits wrong: name → (file, key path, reason)."""

TOP_LEVEL_KEYS = (
    "model, dtype, weights, kernels, max_model_len, kv, max_batch_tokens, long_prefill_token_threshold, "
    "max_partial_prefills, local_prefill_max_tokens, max_num_seqs, prefill_token_buckets, decode_batch_buckets"
)

SETTINGS = {
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
    "unknown weights": ("weights: int4", "weights", 'found "int4"; needs one of dtype, int8'),
    "weights by number": ("weights: 8", "weights", "found 8; needs one of dtype, int8"),
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
    "null rows": ("max_num_seqs:", "max_num_seqs", "found null; needs a mapping with the keys prefill, decode"),
    "list of rows": (
        "max_num_seqs: [64, 64]",
        "max_num_seqs",
        "found [64, 64]; needs a mapping with the keys prefill, decode",
    ),
    "bool threshold": (
        "long_prefill_token_threshold: false",
        "long_prefill_token_threshold",
        "found false; needs an integer ≥ 0",
    ),
}
