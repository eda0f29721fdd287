"""Ladders: the ascending padded sizes that steps run at."""

from shared.ladder.ladder import Ladder, doubling_rungs, trim

__all__ = ["Ladder", "doubling_rungs", "trim"]
