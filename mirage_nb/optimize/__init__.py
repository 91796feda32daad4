"""Plans beside a muGraph: thread graphs, layouts, schedule, memory (paper sections 4.2 and 6)."""

from mirage_nb.optimize.options import Options
from mirage_nb.optimize.plan import BlockPlan, Buffer, Plan, plan, plan_block
from mirage_nb.optimize.thread_graph import fuse, fuse_block

__all__ = ["BlockPlan", "Buffer", "Options", "Plan", "fuse", "fuse_block", "plan", "plan_block"]
