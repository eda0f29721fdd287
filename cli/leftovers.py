"""What services that were killed leave behind in shared memory."""

from pathlib import Path

from cli.fleet import Fleet


def remove_leftovers(fleet: Fleet, shm_dir: Path) -> None:
    """Removes the KV pools in `shm_dir` that no process holds, if one of the ended fleet may have left its own there.

    A service that ends by itself removes its pool.
    """
    if not fleet.ended_well:
        from shared.kv.segment import sweep_stale_segments  # brings torch, which is slow to import

        sweep_stale_segments(shm_dir)
