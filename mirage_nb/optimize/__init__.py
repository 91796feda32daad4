"""Plans beside a muGraph: thread graphs, layouts, schedule, memory (paper sections 4.2 and 6)."""

from mirage_nb.optimize.options import Options, default_options
from mirage_nb.optimize.plan import BlockPlan, Plan, as_planned, plan, plan_block, variants
from mirage_nb.tile.rules.thread_graph import fuse, fuse_block

__all__ = [
    "BlockPlan", "Options", "Plan", "as_planned", "default_options", "fuse", "fuse_block", "plan",
    "plan_block", "variants",
]  # fmt: skip
