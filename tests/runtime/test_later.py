"""Jobs for later: in their order, side by side where that is asked for, and never loud."""

from __future__ import annotations

import os
import threading

from mirage_nb.runtime.contest.later import Job, Later


def test_one_thread_does_jobs_in_their_order_and_keeps_what_they_raise() -> None:
    later, done = Later("one"), list[int]()
    jobs = [Job(lambda n=n: done.append(n)) for n in range(20)] + [Job(lambda: 1 / 0)]  # type: ignore[misc]
    for job in jobs:
        later.put(job)
    assert all(job.wait(10) for job in jobs) and done == [*range(20)]
    assert [type(job.error) for job in jobs[-2:]] == [type(None), ZeroDivisionError]


def test_jobs_that_wait_for_each_other_need_two_threads() -> None:
    both = threading.Barrier(2, timeout=10)
    jobs = [Job(lambda: both.wait() and None) for _ in range(2)]
    later = Later("two", most=2)
    for job in jobs:
        later.put(job)
    assert all(job.wait(10) and job.error is None for job in jobs)


def test_a_forked_process_has_threads_of_its_own_and_waits_for_no_job_of_the_other() -> None:
    later, go_on = Later("forked"), threading.Event()
    running, fresh = Job(lambda: go_on.wait(30) and None), Job(lambda: None)
    later.put(running)
    if not (child := os.fork()):
        later.put(fresh)
        os._exit(0 if running.wait() and running.lost and fresh.wait(10) else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    assert status == 0 and running.wait(10) and not running.lost and not fresh.ended
