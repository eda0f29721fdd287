"""The decode service: takes requests from clients, fetches KV from prefill, generates.

The life of a request here:

1. A client calls `StreamGenerate`: `translate.py` validates it, tokenizes the prompt once, and compiles a constraint.
2. `admission.py` reserves KV blocks for prompt and completions, or lets it wait in a bounded queue.
3. `generator.py` decides who computes the prompt: this service, if little of it is uncached, or a prefill replica.
4. `replicas.py` picks the replica; `prefill_stream.py` opens `Prefill` there and fetches each chunk's KV while later
   chunks compute; `remote_prefill.py` makes up for failures. The first token goes to the client at once.
5. The step loop (`shared.worker`) continues each completion in its batch (`lanes.py`); tokens are detokenized, stops
   checked (`completion.py`), and deltas sent (`answers.py`).
6. A completion's blocks are freed when its last token is sampled, or the client goes away.
"""
