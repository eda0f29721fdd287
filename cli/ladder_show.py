"""`baton ladder show`: what a config resolves to, printed."""

import json
from collections.abc import Iterator

import typer

from cli.failures import plain_failures
from cli.ladder_bytes import sizes_or_reason
from cli.ladder_report import Report, WalkReport, report
from cli.ladder_text import ABSENT, columns, human_bytes, integer_list
from cli.layout import ConfigFiles
from shared.config.load import load_decode, load_prefill, load_serving
from shared.config.resolve import resolve
from shared.config.write import overriding_variables


def run(files: ConfigFiles, as_json: bool) -> None:
    """Prints the report; cautions go to standard error, or into the JSON."""
    with plain_failures():
        serving = load_serving(files.serving)
        num_kv_blocks = {
            "prefill": load_prefill(files.prefill).num_kv_blocks,
            "decode": load_decode(files.decode).num_kv_blocks,
        }
        resolved = resolve(serving)
        shown = report(serving, resolved, num_kv_blocks, sizes_or_reason(serving), overriding_variables(()))
    if as_json:
        typer.echo(json.dumps({"file": str(files.serving), **shown.as_json()}, indent=2, ensure_ascii=False))
        return
    for line in _lines(shown):
        typer.echo(line)
    for sentence in shown.cautions:
        typer.echo(f"caution: {sentence}", err=True)
    for variable in shown.variables:
        typer.echo(f"note: {variable} overrides what {files.serving} says", err=True)


def _lines(shown: Report) -> Iterator[str]:
    yield from columns(
        ("node", "walk", "step budget", "offline budget", "rungs", "dropped", "buffers"),
        [_walk_cells(walk) for walk in shown.walks],
        left=("node", "walk"),
    )
    yield ""
    for walk in shown.walks:
        yield from _ladder_lines(walk)
    yield ""
    for name, value in _limits(shown):
        yield f"{name:<30}{value}"
    yield ""
    yield from _memory_lines(shown)


def _walk_cells(walk: WalkReport) -> tuple[str, ...]:
    return (
        walk.node,
        walk.walk,
        _budget(walk, walk.step_budget),
        ABSENT if walk.offline_budget == walk.step_budget else _budget(walk, walk.offline_budget),
        str(len(walk.rungs)),
        str(len(walk.dropped)),
        human_bytes(walk.buffer_bytes),
    )


def _budget(walk: WalkReport, budget: int | None) -> str:
    if walk.unit == "rows":
        return "a token a row"
    return "not chunked" if budget is None else str(budget)


def _ladder_lines(walk: WalkReport) -> Iterator[str]:
    name = f"{walk.node}.{walk.walk}"
    if walk.combined_walk and walk.unit == "tokens":
        own = "has rungs of its own" if walk.has_own_rungs else "and its rungs"
        yield f"{name}: inside of {walk.combined_walk}, shares its budget, {own}"
    if walk.has_own_rungs:
        yield f"{name}: {walk.unit} {integer_list(walk.rungs)}"
    if walk.has_own_rungs and walk.dropped:
        why = f"{walk.rungs[-1]} holds the budget of {walk.step_budget}"
        yield f"{name}: dropped {integer_list(walk.dropped)}, as {why}"


def _limits(shown: Report) -> list[tuple[str, object]]:
    local = shown.local_prefill_max_tokens
    return [
        *((f"max_num_seqs.{node}", nodes.max_num_seqs) for node, nodes in shown.nodes.items()),
        ("long_prefill_token_threshold", shown.long_prefill_token_threshold or "0 (no cap)"),
        ("max_partial_prefills", shown.max_partial_prefills or "0 (no cap)"),
        ("local_prefill_max_tokens", "null (always)" if local is None else local),
        ("kv.block_size", shown.block_size),
        ("model", shown.model),
        ("dtype", shown.dtype or "auto"),
        ("weights", shown.weights),
        ("kernels", shown.kernels),
        ("digest", shown.digest),
    ]


def _memory_lines(shown: Report) -> Iterator[str]:
    if shown.bytes_unknown is not None:
        yield f"no bytes: {shown.bytes_unknown}"
        return
    rows = [
        (node, human_bytes(of.buffer_bytes), human_bytes(of.kv_pool_bytes), str(of.num_kv_blocks))
        for node, of in shown.nodes.items()
    ]
    yield from columns(("node", "step buffers", "KV pool", "blocks"), rows, left=("node",))
