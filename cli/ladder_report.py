"""What a shared config resolves to, as values: for each walk and node budgets, rungs and bytes. Nothing is printed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from cli.ladder_bytes import ModelSizes
from shared.config.notice import cautions
from shared.config.resolve import ResolvedServing, ResolvedWalk
from shared.config.serving import ServingConfig

NODES = ("prefill", "decode")
_COMBINED = {("decode", "prefill_text"): "mixed"}
"""Walk → the combined walk that it shares a budget with."""


@dataclass(frozen=True)
class WalkReport:
    """One walk of one node.

    Attributes:
        unit: what rungs count: tokens or rows.
        step_budget: most tokens in a step; None: not chunked, or one token a row.
        offline_budget: the same in an offline batch.
        dropped: rungs that no step within the budget needs.
        combined_walk: the walk that this one is inside of, whose budget it shares; None: none.
        has_own_rungs: whether captures are prepared for this walk; else it runs on the combined walk's.
        buffer_bytes: of its step buffers, were it the only walk; None where the model is not known.
    """

    node: str
    walk: str
    unit: str
    step_budget: int | None
    offline_budget: int | None
    rungs: tuple[int, ...]
    dropped: tuple[int, ...]
    combined_walk: str | None
    has_own_rungs: bool
    buffer_bytes: int | None


@dataclass(frozen=True)
class NodeReport:
    """One node; bytes are None where the model is not known.

    Attributes:
        buffers: part → bytes of the step buffers of all walks, which share them.
        buffer_bytes: all parts.
        num_kv_blocks: blocks of its KV pool.
    """

    max_num_seqs: int
    buffers: Mapping[str, int] | None
    buffer_bytes: int | None
    num_kv_blocks: int
    kv_pool_bytes: int | None


@dataclass(frozen=True)
class Report:
    """All that `baton ladder show` says.

    Attributes:
        dtype: of weights and KV; None where the model is not known and the config says auto.
        bytes_unknown: why there are no bytes; None where there are.
        variables: environment variables that override keys of the file.
    """

    model: str
    dtype: str | None
    weights: str
    kernels: str
    walks: tuple[WalkReport, ...]
    nodes: Mapping[str, NodeReport]
    bytes_unknown: str | None
    long_prefill_token_threshold: int
    max_partial_prefills: int
    local_prefill_max_tokens: int | None
    block_size: int
    digest: str
    cautions: tuple[str, ...]
    variables: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """All of it, as JSON has it."""
        return asdict(self)


def report(
    serving: ServingConfig,
    resolved: ResolvedServing,
    num_kv_blocks: Mapping[str, int],
    sizes: ModelSizes | str,
    variables: Sequence[str],
) -> Report:
    """Gathers the report.

    Args:
        serving: what the file says.
        resolved: what comes of it.
        num_kv_blocks: node → blocks of its pool.
        sizes: of the model, or why they are not known.
        variables: environment variables that override keys of the file.
    """
    known = None if isinstance(sizes, str) else sizes
    walks = [*resolved.walks]
    if not resolved.has_walk("decode", "prefill_text"):
        walks.append(resolved.walk("decode", "prefill_text"))
    return Report(
        model=serving.model,
        dtype=known.dtype if known else None if serving.dtype == "auto" else serving.dtype,
        weights=serving.weights,
        kernels=serving.kernels,
        walks=tuple(_walk_report(resolved, walk, known) for walk in walks),
        nodes={node: _node_report(resolved, node, num_kv_blocks[node], known) for node in NODES},
        bytes_unknown=sizes if isinstance(sizes, str) else None,
        long_prefill_token_threshold=resolved.long_prefill_token_threshold,
        max_partial_prefills=resolved.max_partial_prefills,
        local_prefill_max_tokens=resolved.local_prefill_max_tokens,
        block_size=resolved.block_size,
        digest=resolved.digest(),
        cautions=tuple(cautions(resolved)),
        variables=tuple(variables),
    )


def _walk_report(resolved: ResolvedServing, walk: ResolvedWalk, sizes: ModelSizes | None) -> WalkReport:
    num_rows = resolved.max_num_seqs(walk.node)
    has_own_rungs = resolved.has_walk(walk.node, walk.name)
    return WalkReport(
        node=walk.node,
        walk=walk.name,
        unit="rows" if walk.name == "decode" else "tokens",
        step_budget=walk.step_budget,
        offline_budget=resolved.effective_budget(walk.node, walk.name),
        rungs=walk.ladder.rungs,
        dropped=walk.ladder.dropped,
        combined_walk=_COMBINED.get((walk.node, walk.name)),
        has_own_rungs=has_own_rungs,
        buffer_bytes=sizes.step_buffers([walk], num_rows).total if sizes and has_own_rungs else None,
    )


def _node_report(resolved: ResolvedServing, node: str, num_blocks: int, sizes: ModelSizes | None) -> NodeReport:
    num_rows = resolved.max_num_seqs(node)
    buffers = sizes.step_buffers(resolved.walks_of(node), num_rows) if sizes else None
    return NodeReport(
        max_num_seqs=num_rows,
        buffers=asdict(buffers) if buffers else None,
        buffer_bytes=buffers.total if buffers else None,
        num_kv_blocks=num_blocks,
        kv_pool_bytes=sizes.kv_pool(num_blocks) if sizes else None,
    )
