"""KV blocks: who owns them, where their bytes lie, and how the bytes reach another process.

The life of a block:

    free ──allocate──▶ in use ──release of the last reference──▶ free         content is forgotten
                         │ ▲                                └──▶ idle cached  if the prefix cache keeps its content
                         │ └────────match (retain)─────────────────┘
                         └──retain / release: the number of references
    idle cached ──allocate, when no block is free: least recently used first──▶ in use, evicted from the cache

1. `BlockAllocator.allocate` hands out blocks with one reference and gives each a new *generation*.
2. The engine writes KV into `KvPool.tensor`; full blocks may be given to `PrefixCache.insert`.
3. A prefill service exports blocks as a `KvHandle`: ids and generations. The references it holds pin them.
4. A decode service fetches them through a `KvTransport`. A generation that has changed proves that the block was
   recycled meanwhile: the fetch fails and its bytes are not used.
5. `release` returns the reference. Free, idle cached and in-use blocks always sum to `num_blocks - 1`: block 0 is
   scratch, where padding is written, and belongs to no request.

`allocator` and `prefix_cache` are pure accounting and belong to the event loop; `pool` and `segment` hold memory;
`transports` move bytes off the event loop.
"""
