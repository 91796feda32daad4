"""The options of the backend, as torch.compile passes them.

In: `mode=` and `options=` of torch.compile. Out: `Options`. Invariant: an unknown option, or a value that one cannot
take, is an OptionError that names the ones there are; nothing is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from mirage_nb.errors import OptionError
from mirage_nb.search import EFFORTS
from mirage_nb.targets import find_target

REMAINDERS = ("inductor", "eager")
MODES = {
    None: 15.0, "default": 15.0, "reduce-overhead": 15.0, "max-autotune": 60.0, "max-autotune-no-cudagraphs": 60.0,
}  # fmt: skip
"""Seconds of search for each region in each mode of torch.compile."""
BETWEEN = {"combo_kernels": True, "benchmark_combo_kernel": True, "triton.enable_pdl": False}
"""How PyTorch makes what is left between kernels of ours. It is small: what does not depend on each other is one kernel
where that is measured faster (a decode layer of LLaMA-3-8B took 117.9 us instead of 120.7, on an H200). And it starts
when the kernel in front has ended: else it would read what is older than that one without waiting, and ours let it
start before they have waited."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may say.

    Attributes:
        effort: of the search for each region; default: `quick` where one kernel is estimated as fast as two, else
            `standard`.
        seconds: of search for each region, at most; None: no limit but the effort's. Default: by the mode.
        total: seconds for all regions of a graph together, at most, those that together move the most bytes first; what
            is not begun by then stays with PyTorch, and what is left of it goes once more to those whose kernels take
            far longer than was estimated. None: no limit but that of each.
        wait: whether the first call waits for the search; else it runs PyTorch's code, and kernels come in later.
        remainder: what computes everything else: `inductor`, or `eager` PyTorch.
        emulate: without a GPU, run regions on the CPU edition of the device library: slow, for trying things out.
        store: where sessions are kept and found again: a file, True for the user's own, False for none.
        target: the GPU to search for; default: the attached one.
        mode: of torch.compile, for what is PyTorch's. Beside other options it is one of them, since torch.compile takes
            a mode or options.
    """

    effort: str | None = None
    seconds: float | None = MODES[None]
    total: float | None = None
    wait: bool = False
    remainder: str = "inductor"
    emulate: bool = False
    store: str | Path | bool | None = None
    target: str | None = None
    mode: str | None = None

    @classmethod
    def of(cls, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Options:
        """Read what torch.compile was given. Raises OptionError."""
        given = dict(options or {})
        mode = given.setdefault("mode", mode)
        if mode not in MODES:
            raise OptionError(f"there is no mode {mode!r}", hint=f"modes are {', '.join(filter(None, MODES))}")
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise OptionError(f"the backend has no option {name!r}", hint=f"options are {', '.join(known)}")
        made = cls(**{"seconds": MODES[mode], **given})
        made._check()
        return made

    @property
    def patches(self) -> dict[str, Any]:
        """The settings of PyTorch's compiler in this mode."""
        return dict(torch._inductor.list_mode_options(self.mode)) if self.mode is not None else {}

    @property
    def between(self) -> dict[str, Any]:
        """Those for a graph that calls kernels of ours, as far as this version of PyTorch has them."""
        known = torch._inductor.config.get_config_copy()
        return {**{name: value for name, value in BETWEEN.items() if name in known}, **self.patches}

    @property
    def code(self) -> dict[str, Any]:
        """Those of them that change the kernels it makes."""
        return {name: value for name, value in self.patches.items() if not name.startswith("triton.cudagraph")}

    def _check(self) -> None:
        if self.effort is not None and self.effort not in EFFORTS:
            raise OptionError(f"there is no effort {self.effort!r}", hint=f"efforts are {', '.join(EFFORTS)}")
        if self.remainder not in REMAINDERS:
            raise OptionError(f"there is no remainder {self.remainder!r}", hint=f"it is {' or '.join(REMAINDERS)}")
        for name in ("seconds", "total"):
            seconds = getattr(self, name)
            if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds < float("inf")):
                raise OptionError(f"{name} of search are a positive number, not {seconds!r}", hint=f"{name}=30")
        if self.target is not None:
            find_target(self.target)
        for name in ("wait", "emulate"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is True or False, not {getattr(self, name)!r}")
