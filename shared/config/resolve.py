"""From what the file says to what the nodes run: budgets, ladders after trimming, and the form that services compare.

Order: a ladder that is left out is made first, then every ladder is trimmed to its walk's budget.

| node | walk | budget | ladder |
|---|---|---|---|
| prefill | prefill_text | `max_batch_tokens.prefill.prefill_text` | tokens |
| decode | decode | none: one token a row, at most `max_num_seqs.decode` rows | rows |
| decode | mixed | `max_batch_tokens.decode.mixed` | tokens |
| decode | prefill_text | `mixed`'s, the combined walk that it is inside of | tokens; `mixed`'s unless given |
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shared.config.serving import DEFAULT_MIXED_BUDGET, DEFAULT_PREFILL_BUDGET, ServingConfig
from shared.ladder import Ladder, doubling_rungs, trim

LOWEST_TOKEN_RUNG = 32
ABSENT = "(absent)"


@dataclass(frozen=True)
class ResolvedWalk:
    """One kind of step of one node.

    Attributes:
        node: prefill or decode.
        name: prefill_text, decode or mixed.
        step_budget: most tokens in a step; None: no limit, prompts are not chunked.
        ladder: rungs in tokens; in rows for the `decode` walk.
    """

    node: str
    name: str
    step_budget: int | None
    ladder: Ladder


@dataclass(frozen=True)
class ResolvedServing:
    """The serving config as the nodes run it.

    Attributes:
        walks: all walks that a node prepares captures for.
        num_rows: node → most rows it runs.
        long_prefill_token_threshold: most tokens that one request gets in a step; 0: no cap.
        max_partial_prefills: most rows in a step that are a chunk of a longer prompt; 0: no cap.
        local_prefill_max_tokens: decode computes a prompt itself when no more than this is uncached; None: always.
        block_size: tokens a KV block.
        weights: what linears hold: dtype or int8. KV that other weights made is other KV.
    """

    walks: tuple[ResolvedWalk, ...]
    num_rows: Mapping[str, int]
    long_prefill_token_threshold: int
    max_partial_prefills: int
    local_prefill_max_tokens: int | None
    block_size: int
    weights: str

    def walks_of(self, node: str) -> tuple[ResolvedWalk, ...]:
        """The walks that a node prepares captures for."""
        return tuple(walk for walk in self.walks if walk.node == node)

    def walk(self, node: str, name: str) -> ResolvedWalk:
        """One walk. The decode node's `prefill_text` is `mixed` under its own name, unless it has rungs of its own.

        Raises:
            KeyError: the node has no such walk.
        """
        for walk in self.walks_of(node):
            if walk.name == name:
                return walk
        if (node, name) == ("decode", "prefill_text"):
            mixed = self.walk("decode", "mixed")
            return ResolvedWalk(node, name, mixed.step_budget, mixed.ladder)
        raise KeyError(f"{node}.{name}")

    def has_walk(self, node: str, name: str) -> bool:
        """Whether the node prepares captures for a walk of this name."""
        return any(walk.name == name for walk in self.walks_of(node))

    def max_num_seqs(self, node: str) -> int:
        """Most rows that a node runs."""
        return self.num_rows[node]

    def effective_budget(self, node: str, name: str) -> int | None:
        """Most tokens in a step of an offline batch; see `offline_walk`."""
        return self.offline_walk(node, name).step_budget

    def offline_walk(self, node: str, name: str) -> ResolvedWalk:
        """The walk as an offline batch runs it: under its effective budget, and trimmed to that.

        The effective budget is the step budget, capped by the threshold where one long prompt runs at a time
        (`max_partial_prefills` is 1).
        """
        walk = self.walk(node, name)
        if walk.step_budget is None or self.max_partial_prefills != 1 or self.long_prefill_token_threshold == 0:
            return walk
        budget = min(walk.step_budget, self.long_prefill_token_threshold)
        return replace(walk, step_budget=budget, ladder=trim((*walk.ladder.rungs, *walk.ladder.dropped), budget))

    def dropped_rungs(self) -> dict[str, tuple[int, ...]]:
        """`node.walk` → rungs that trimming dropped, for walks that lost any."""
        return {f"{walk.node}.{walk.name}": walk.ladder.dropped for walk in self.walks if walk.ladder.dropped}

    def canonical_json(self) -> str:
        """The weights, ladders and budgets that two services must agree on, under their config keys, sorted."""
        return json.dumps(self._comparable(), sort_keys=True, separators=(",", ":"))

    def digest(self) -> str:
        """SHA-256 of `canonical_json`, in hex."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    def _comparable(self) -> dict[str, object]:
        budgets: dict[str, dict[str, int | None]] = {}
        ladders: dict[str, dict[str, dict[str, object]]] = {"prefill_token_buckets": {}, "decode_batch_buckets": {}}
        for walk in self.walks:
            is_packed = walk.name != "decode"
            if is_packed:
                budgets.setdefault(walk.node, {})[walk.name] = walk.step_budget
            ladder = {"rungs": walk.ladder.rungs, "dropped": walk.ladder.dropped}
            buckets = ladders["prefill_token_buckets" if is_packed else "decode_batch_buckets"]
            buckets.setdefault(walk.node, {})[walk.name] = ladder
        return {
            "weights": self.weights,
            "max_batch_tokens": budgets,
            "long_prefill_token_threshold": self.long_prefill_token_threshold,
            "max_partial_prefills": self.max_partial_prefills,
            **ladders,
        }


def resolve(config: ServingConfig) -> ResolvedServing:
    """Fills in ladders that are left out, trims all, and shares the combined walk's budget with its parts."""
    budgets, tokens = config.max_batch_tokens, config.prefill_token_buckets
    prefill_budget, mixed_budget = budgets.prefill.prefill_text, budgets.decode.mixed
    prefill_rungs = tokens.prefill.prefill_text or _token_rungs(prefill_budget or DEFAULT_PREFILL_BUDGET)
    mixed_rungs = tokens.decode.mixed or _token_rungs(mixed_budget or DEFAULT_MIXED_BUDGET)
    row_rungs = config.decode_batch_buckets.decode.decode or doubling_rungs(1, config.max_num_seqs.decode)
    walks = [
        ResolvedWalk("prefill", "prefill_text", prefill_budget, trim(prefill_rungs, prefill_budget)),
        ResolvedWalk("decode", "decode", None, trim(row_rungs, None)),
        ResolvedWalk("decode", "mixed", mixed_budget, trim(mixed_rungs, mixed_budget)),
    ]
    if tokens.decode.prefill_text is not None:
        ladder = trim(tokens.decode.prefill_text, mixed_budget)
        walks.append(ResolvedWalk("decode", "prefill_text", mixed_budget, ladder))
    return ResolvedServing(
        walks=tuple(walks),
        num_rows={"prefill": config.max_num_seqs.prefill, "decode": config.max_num_seqs.decode},
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        max_partial_prefills=config.max_partial_prefills,
        local_prefill_max_tokens=config.local_prefill_max_tokens,
        block_size=config.kv.block_size,
        weights=config.weights,
    )


def differences(ours_json: str, theirs_json: str) -> list[tuple[str, str, str]]:
    """Key paths at which two canonical forms differ, with both values, as JSON.

    `theirs_json` comes from a peer: where it is no JSON object, it differs as a whole, under the path `serving`.
    """
    try:
        theirs = json.loads(theirs_json)
    except (ValueError, RecursionError):
        theirs = None
    if not isinstance(theirs, dict):
        return [("serving", ours_json, theirs_json)]
    return _differences(json.loads(ours_json), theirs, ())


def _differences(ours: object, theirs: object, path: Sequence[str]) -> list[tuple[str, str, str]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = sorted(ours.keys() | theirs.keys())
        pairs = ((key, ours.get(key, ABSENT), theirs.get(key, ABSENT)) for key in keys)
        return [found for key, mine, yours in pairs for found in _differences(mine, yours, (*path, key))]
    are_equal = json.dumps(ours) == json.dumps(theirs)  # as JSON, where 1 is not true
    return [] if are_equal else [(".".join(path), _text(ours), _text(theirs))]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _token_rungs(needed: int) -> tuple[int, ...]:
    return doubling_rungs(LOWEST_TOKEN_RUNG, needed)
