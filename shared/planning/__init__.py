"""Planning: which rows take part in the next step, and with how many tokens. Pure: values in, a decision out."""

from shared.planning.rows import PlanRow, RowSlice, StepLimits, StepPlan
from shared.planning.step import plan_step

__all__ = ["PlanRow", "RowSlice", "StepLimits", "StepPlan", "plan_step"]
