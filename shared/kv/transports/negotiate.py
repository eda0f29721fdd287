"""Which transport two services use. Pure."""

from collections.abc import Callable, Sequence

from shared.errors import HandshakeError


def negotiate(wanted: Sequence[str], offered: Sequence[str], prove: Callable[[str], bool]) -> str:
    """The first wanted transport that the peer offers and that this side can prove to work.

    Args:
        wanted: this side's transports, best first.
        offered: the peer's.
        prove: tries one, for instance by mapping the offered segment; called in order, and not after a success.

    Raises:
        HandshakeError: there is none.
    """
    for name in wanted:
        if name in offered and prove(name):
            return name
    raise HandshakeError(
        f"no common KV transport: {', '.join(wanted) or 'none'} wanted, {', '.join(offered) or 'none'} offered, "
        "and none of both lists works",
        metadata={"field": "transports", "ours": ",".join(wanted), "theirs": ",".join(offered)},
    )
