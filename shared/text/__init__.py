"""Text in and out: tokenizing and chat templates, incremental detokenizing, and the rules that end a generation.

    prompt ──Tokenizer──▶ token ids ─ … ─▶ token ids ──OutputStream──▶ text deltas, and the finish
                                                        ├─ token_finish           stop tokens, lengths
                                                        ├─ IncrementalDetokenizer whole characters only
                                                        └─ StopMatcher            stop strings

`stopping` is pure: it knows no tokenizer.
"""
