"""The search: values saturated bottom-up, muGraphs extracted from them, sizes instantiated last."""

from mirage_nb.search.axes import Axis, Prepared, prepare
from mirage_nb.search.explore import ConfigurationResult, run_configuration
from mirage_nb.search.limits import OPERATORS, Limits
from mirage_nb.search.pieces.assemble import Assembly, instances, sized, tiny
from mirage_nb.search.sizes.cost import Cost
from mirage_nb.search.sizes.drafts import Instance
from mirage_nb.search.space import EFFORTS, Budget, Configuration, Effort, configurations
from mirage_nb.search.structure import KernelStructure, Source, Step, Structure
from mirage_nb.search.switches import AXIOMS, PRUNINGS, Switch, Switches, switched

__all__ = [
    "AXIOMS",
    "EFFORTS",
    "OPERATORS",
    "PRUNINGS",
    "Assembly",
    "Axis",
    "Budget",
    "Configuration",
    "ConfigurationResult",
    "Cost",
    "Effort",
    "Instance",
    "KernelStructure",
    "Limits",
    "Prepared",
    "Source",
    "Step",
    "Structure",
    "Switch",
    "Switches",
    "configurations",
    "instances",
    "prepare",
    "run_configuration",
    "sized",
    "switched",
    "tiny",
]
