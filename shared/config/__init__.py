"""Config: read once, checked whole, frozen.

    load.py      file and environment ──▶ ServingConfig, PrefillServiceConfig, DecodeServiceConfig
    resolve.py   ServingConfig ──▶ ResolvedServing: ladders trimmed, budgets shared, digest for the handshake
    notice.py    what to log about it

`schema.py` holds the types of keys, `explain.py` the words of refusals. Nothing here knows torch or grpc, so a file can
be checked before anything else is loaded.
"""
