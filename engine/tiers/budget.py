"""Memory before it is taken: what a plan needs at any context, what is available, and what would fit.

Weights are not counted: they are read from the mapped file, whose pages the system may drop. Any thread.
"""

from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.errors import OutOfMemory

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
_UNLIMITED = 1 << 62
_RESERVE_BYTES = 64 << 20  # for what is allocated while requests are answered


@dataclass(frozen=True)
class Plan:
    """Memory as a straight line over the context, for one size of prompt chunks."""

    fixed_bytes: int
    cell_bytes: int

    @classmethod
    def through(cls, one: tuple[int, int], other: tuple[int, int]) -> "Plan":
        """The line through two measured points (cells, bytes); rounded up."""
        (cells, low), (more_cells, high) = one, other
        cell_bytes = -(-(high - low) // (more_cells - cells))
        return cls(max(low - cells * cell_bytes, 0), cell_bytes)

    def bytes_for(self, cells: int) -> int:
        """What a context of so many cells needs."""
        return self.fixed_bytes + cells * self.cell_bytes

    def most_cells(self, budget_bytes: int) -> int:
        """The largest context inside a budget; 0 if there is none."""
        return max(budget_bytes - self.fixed_bytes, 0) // max(self.cell_bytes, 1)


def usable_bytes() -> int:
    """Memory that may be taken now: what is free or reclaimable, inside the limit of the process's control group."""
    return max(min(psutil.virtual_memory().available, cgroup_bytes()) - _RESERVE_BYTES, 0)


def does_not_fit(*, needed_bytes: int, usable: int, context: int, chunk: int, plan: Plan, plan_chunk: int,
                 weights: bool = False) -> OutOfMemory:
    """The error that says what was needed, what there is and what would fit. `plan` is for chunks of `plan_chunk`;
    weights: it counts them too."""
    cells = min(plan.most_cells(usable), context)
    flags = f"--max-context {cells}" + (f" --prefill {plan_chunk}" if plan_chunk != chunk else "")
    counted = "with" if weights else "beside"
    return OutOfMemory(
        f"a context of {context} with prompt chunks of {chunk} needs {_gib(needed_bytes)} GiB {counted} the weights, "
        f"{_gib(usable)} GiB are available; " + (f"{flags} would fit" if cells >= plan_chunk else "no context would fit"))


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 30):.2f}"


def cgroup_bytes(*, mounted: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """The least room in the control groups around this process; a very large number without limits.

    Pages of files that were not touched lately count as room: the system takes them back before anything else.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return _UNLIMITED
    least = _UNLIMITED
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers and "memory" not in controllers.split(","):
            continue
        root, names = (mounted / "memory", _VERSION_1) if controllers else (mounted, _VERSION_2)
        group = root / path.lstrip("/")  # inside a container only its parents may be mounted
        least = min([least, *(_room(folder, *names) for folder in (group, *group.parents) if folder.is_relative_to(root))])
    return least


def _room(folder: Path, limit_file: str, usage_file: str, cache_key: str) -> int:
    try:
        limit = (folder / limit_file).read_text().strip()
        used = int((folder / usage_file).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return _UNLIMITED if limit == "max" else max(int(limit) - used + int(stat.get(cache_key, 0)), 0)
    except (OSError, ValueError):
        return _UNLIMITED
