"""Files that hold no mapping: name → (content, reason)."""

UNREADABLE = {
    "empty": (b"", "found an empty file; needs a mapping of keys ({} for all defaults)"),
    "only comments": (b"# nothing\n", "found an empty file; needs a mapping of keys ({} for all defaults)"),
    "list at the top": (b"- 1\n- 2\n", "found [1, 2] at the top; needs a mapping of keys"),
    "text at the top": (b"just text", 'found "just text" at the top; needs a mapping of keys'),
    "no UTF-8": (b"model: \xff\xfe", "found bytes that are no UTF-8, at byte 7; needs UTF-8 text"),
    "UTF-16": ("model: a".encode("utf-16"), "found bytes that are no UTF-8, at byte 0; needs UTF-8 text"),
    "syntax": (
        b"model: a\nkv: {block_size: 32\n",
        "line 3, column 1: while parsing a flow mapping expected ',' or '}', but got '<stream end>'; needs valid YAML",
    ),
    "tab": (
        b"model:\n\t- a",
        (
            "line 2, column 1: while scanning for the next token found character '\\t' that cannot start any token; "
            "needs valid YAML"
        ),
    ),
    "key twice": (
        b"dtype: auto\nmodel: a\ndtype: float32\n",
        (
            'line 3, column 1: while constructing a mapping found duplicate key "dtype" with value "float32" '
            '(original value: "auto"); needs valid YAML'
        ),
    ),
    "two documents": (
        b"model: a\n---\nmodel: b\n",
        "line 2, column 1: expected a single document in the stream but found another document; needs valid YAML",
    ),
    "object": (
        b"model: !!python/object:os.system x",
        (
            "line 1, column 8: could not determine a constructor for the tag 'tag:yaml.org,2002:"
            "python/object:os.system'; needs valid YAML"
        ),
    ),
    "control character": (
        b"model: \x01",
        (
            'found what cannot be read (unacceptable character #x0001: special characters are not allowed in "<unicode '
            'string>", position 7); needs valid YAML'
        ),
    ),
    "no date": (b"model: 2024-13-45", "found what cannot be read (month must be in 1..12); needs valid YAML"),
    "deep nesting": (b"[" * 5000 + b"]" * 5000, "found values nested too deeply; needs a few levels"),
}
