"""Benchmarks: the workloads as programs, their peers, and the commands that time and tabulate them."""

from mirage_nb.bench.workloads import WORKLOADS, workload

__all__ = ["WORKLOADS", "workload"]
