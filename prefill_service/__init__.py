"""The prefill service: computes prompts in chunks and hands their KV to decode services.

The life of a request here:

1. A decode service opens `Prefill` and sends `start`: `servicer.py` translates it to a `PrefillTask`.
2. `scheduler.py` queues it, reserves blocks for the whole prompt, and submits a sequence to the step loop.
3. The step loop (`shared.worker`) runs chunks of many prompts together, under the step budget.
4. As each chunk lands, its closed blocks are pinned and go out as a `KvHandle` (`exports.py`).
5. The last chunk's logits give the first token, which goes out with the last handle.
6. Each acknowledged handle is unpinned; the end of the stream unpins what is left.
"""
