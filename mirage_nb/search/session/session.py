"""A search session: a supervising thread, replaceable workers, and a snapshot at any moment.

In: a tensor program, a target, bounds, and possibly a checkpoint. Out: snapshots while it runs and a final one.
The supervising thread begins with the first configurations itself, for a moment: small searches end there,
and large ones have something to show before their workers are up. The rest goes to an executor, worker
processes by default. Invariant: a configuration is counted once, however often it was begun; one that is done
is explored again only if bounds are raised that kept something out of it (`extend`), by this session or by
one that goes on after it. What follows the search can have functions called by the same workers.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from mirage_nb.errors import SearchError
from mirage_nb.ir import KernelGraph
from mirage_nb.search import EFFORTS, Budget, Configuration, prepare
from mirage_nb.search.explain import why_nothing
from mirage_nb.search.session.allowance import Allowance, Reserve, Todo, idle, nothing_kept
from mirage_nb.search.session.background import LIVE, Background
from mirage_nb.search.session.channel import Moment
from mirage_nb.search.session.checkpoint import Checkpoint, Recorder
from mirage_nb.search.session.crew import Crew, failure
from mirage_nb.search.session.crew import Stopped as Stopped
from mirage_nb.search.session.crew import internal_error as internal_error
from mirage_nb.search.session.findings import Bounds, Explored, Findings, known_effort, raised
from mirage_nb.search.session.ledger import Facts, Ledger
from mirage_nb.search.session.piecewise import IN_PIECES_ONLY, WORTH_CUTTING, Made, Pieces, explorable, is_large
from mirage_nb.search.session.progress import Candidate, Snapshot, State
from mirage_nb.search.session.restored import as_stored, look_again
from mirage_nb.search.session.unsearched import operators_of, unsearched, verified
from mirage_nb.search.session.worker import Task, explore
from mirage_nb.search.switches import Switches
from mirage_nb.targets import Target
from mirage_nb.verify.verdict import Verdict, VerdictKind

NOTHING_SWITCHED = Switches()
TICK_SECONDS = 0.05
HEAD_START_SECONDS = 0.3
"""How long the supervising thread searches by itself."""
WIDE = 8
"""From so many workers on it leaves all of the search to them, and a program that is not cut they have at once."""
STOP_SECONDS = 0.3
"""How long workers may take to hand over what they have after a stop."""


class SearchSession(Background):
    """One background search.

    Args:
        program: the tensor program, a kernel graph of pre-defined operators.
        target: the GPU to instantiate for.
        effort: name of an effort preset.
        budget: limits of one configuration; default: the effort's.
        seconds: limit of the whole search; None leaves it to the budget.
        name: what the user calls it.
        executor: anything with the concurrent.futures interface; by default worker processes are started
            and ended with the session. A given executor stays the caller's.
        seed: of all random elements; equal seeds give equal results.
        checkpoint: keeps what is done; what it already has of this session is not searched again.
        switches: axioms and prunings that differ from the effort.

    Raises:
        OptionError: an unknown effort.
    """

    def __init__(
        self,
        program: KernelGraph,
        target: Target,
        *,
        effort: str = "standard",
        budget: Budget | None = None,
        seconds: float | None = None,
        name: str = "",
        executor: Executor | None = None,
        seed: int = 0,
        checkpoint: Checkpoint | None = None,
        switches: Switches = NOTHING_SWITCHED,
    ) -> None:
        super().__init__(name, executor)
        self.program = program
        self.target = target
        self.bounds = Bounds(effort, budget if budget is not None else known_effort(effort).budget, switches)
        self._allowed = Allowance(seconds)
        self.seed = seed
        self._ledger = Ledger()
        self._pieces: Pieces | None = None
        self._programs: dict[Configuration, KernelGraph] = {}
        self._recorder = Recorder(checkpoint, self.tell)
        self._finish: Todo | None = None
        self._meanwhile: Todo = idle
        self._restored = False
        self._verdicts: Iterator[None] = iter(())
        self._first: float | None = None
        self._numbers = itertools.count()

    def __repr__(self) -> str:
        return f"<SearchSession {self.name or 'without a name'}: {self._state.value}>"

    @property
    def effort(self) -> str:
        """Name of the effort preset."""
        return self.bounds.effort

    @property
    def seconds(self) -> float | None:
        """Limit of the search and of what follows it."""
        return self._allowed.seconds

    @property
    def left(self) -> float:
        """Seconds of that limit that are left; infinite without one."""
        return self._allowed.left

    @property
    def search_ends(self) -> float:
        """When the search is over, by the clock (`time.monotonic`)."""
        return math.inf if self._allowed.search_ends is None else self._allowed.search_ends.ticks

    @property
    def budget(self) -> Budget:
        """Limits of one configuration."""
        return self.bounds.budget

    # -- what a user does -------------------------------------------------------------------------

    def start(
        self, finish: Todo | None = None, reserve: Reserve = nothing_kept, meanwhile: Todo = idle
    ) -> SearchSession:
        """Begin in the background and return at once. A session is started once.

        Args:
            finish: called in the supervising thread after every search, unless that was stopped.
            reserve: how many of its seconds, if it has a limit, are kept for that.
            meanwhile: called in that thread when the workers have begun.
        """
        with self._turn:
            if self._state is not State.WAITING:
                raise SearchError("the session was started before", hint="make a new one")
            self._finish, self._allowed.reserve, self._meanwhile = finish, reserve, meanwhile
            self._set_deadline()
            self._begin(self._search_and_finish)
        return self

    def extend(
        self,
        *,
        effort: str | None = None,
        seconds: float | None = None,
        max_block_ops: int | None = None,
        max_values: int | None = None,
        configuration_seconds: float | None = None,
        switches: Switches = NOTHING_SWITCHED,
    ) -> None:
        """Go on with larger bounds, in any state; returns at once. Without arguments: go on after a stop.

        Configurations that are done stay as they are unless a bound is raised that kept something out of
        them. Those that a stop or a limit interrupted are begun again from their start; those that workers
        are at are not interrupted. Results join those that are there.

        Args:
            effort: a larger effort; its axioms differ, so every configuration is explored again.
            seconds: limit of the search from now on; default: as long again as at the start, if that was limited.
            max_block_ops: largest number of block operators of a kernel.
            max_values: most values of a closure.
            configuration_seconds: what one configuration may take.
            switches: axioms and prunings that are switched now; if any is, every configuration is explored again.

        Raises:
            OptionError: an unknown effort, or a bound that is lower than it was.
            SearchError: the session was not started, or its program could not be searched.
        """
        asked = {"max_block_ops": max_block_ops, "max_values": max_values, "seconds": configuration_seconds}
        bounds = raised(self.bounds, effort, {name: value for name, value in asked.items() if value is not None})
        bounds = replace(bounds, switches=bounds.switches.then(switches))
        with self._turn:
            if self._state in (State.WAITING, State.FAILED):
                raise SearchError(f"a session that is {self._state.value} cannot be extended", hint="start a new one")
            self.bounds = bounds
            self._allowed.seconds = seconds if seconds is not None else self.seconds
            self._set_deadline()
            if self._state in LIVE:
                self._extended = True
                self._news.notify_all()
            else:
                self._begin(self._search_and_finish)

    def again(self, target: Target, checkpoint: Checkpoint | None) -> SearchSession:
        """The same search for another GPU, not started: sizes and estimates are the target's own."""
        return SearchSession(
            self.program, target, effort=self.effort, budget=self.budget, seconds=self.seconds, name=self.name,
            executor=self._given, seed=self.seed, checkpoint=checkpoint, switches=self.bounds.switches,
        )  # fmt: skip

    def result(self, timeout: float | None = None) -> Snapshot:
        """Block until the session has ended and return the last snapshot.

        Raises:
            SearchError: it did not end in time, or it failed.
        """
        if not self.wait(timeout):
            hint = "wait longer, or stop it and look at the snapshot"
            raise SearchError(f"not finished after {timeout:g} s", hint=hint)
        last = self.snapshot()
        if last.state is State.FAILED:
            raise SearchError(self.failure)
        return last

    def snapshot(self) -> Snapshot:
        """The state now."""
        with self._turn:
            return self._ledger.snapshot(self.name, self._state, self._elapsed(), self._first)

    # -- candidates -------------------------------------------------------------------------------

    def candidates(self) -> list[Candidate]:
        """All of them, best first; a snapshot has the first ones."""
        with self._turn:
            return self._ledger.ranked()

    def update(self, candidate: Candidate) -> None:
        """Replace a candidate by a version that knows more: a time, an error, a stricter verdict."""
        with self._turn:
            self._ledger.update(candidate)

    def unjudged(self) -> tuple[Candidate, ...]:
        """The candidates that are as stored, and that this session has not looked at, best first."""
        with self._turn:
            return self._ledger.unjudged

    def judge(self, candidate: Candidate, verdict: Verdict) -> None:
        """What this session found of a candidate that was as stored; a wrong one is dropped."""
        with self._turn:
            self._ledger.judge(candidate.digest, verdict)
            if verdict.kind is VerdictKind.REFUTED:
                self._ledger.drop(candidate.digest, f"{candidate.digest[:8]}: what the store says is wrong: {verdict}")

    def drop(self, digest: str, why: str) -> None:
        """Take a candidate out of the results and say why."""
        with self._turn:
            self._ledger.drop(digest, why)

    def mark(self, start: str, pinned: bool | None) -> None:
        """Keep the candidate whose digest begins like that among those that are shown and built, whatever its rank, or
        leave it out; None: let it stand where its rank puts it. Raises OptionError unless there is one."""
        with self._turn:
            self._ledger.mark(self.candidate(start).digest, pinned)
        self._save_late()

    def offer(self, candidates: Iterable[Candidate]) -> None:
        """Add verified candidates that no configuration handed over; those that are known stay as they are."""
        with self._turn:
            for candidate in candidates:
                self._ledger.offer(candidate)
        self._save_late()

    def tell(self, message: str) -> None:
        """Add a line to what the user is told; once."""
        with self._turn:
            self._ledger.tell(message)

    def candidate(self, start: str) -> Candidate:
        """The candidate, excluded or not, whose digest begins like that. Raises OptionError unless there is one."""
        with self._turn:
            return self._ledger.find(start)

    # -- one search -------------------------------------------------------------------------------

    def _search_and_finish(self) -> None:
        """Search, then finish; again, as long as the session is extended meanwhile."""
        while True:
            self._search()
            if self._finish is not None and self.proceed():
                self._follow(self._finish)
            with self._turn:
                if self._is_over() or not self._extended:
                    self._end(State.FINISHED)  # from here on an extension begins a thread of its own
                    return

    def _search(self) -> None:
        self._restore()
        crew = Crew(self._executor(), self)
        at_once = self._given is None and self._width >= WIDE
        if whole := at_once and operators_of(self.program) <= WORTH_CUTTING:
            crew.begin(self._agenda())
        self._begin_with_what_needs_no_search()
        look_again(self, HEAD_START_SECONDS)
        if not whole:
            tasks = self._agenda()
            crew.begin(tasks if at_once else self._head_start(tasks))
        if crew.configurations and not self._is_over():
            self._follow(self._meanwhile)
            self._oversee(crew)
        while not self._ends_now() and next(self._verdicts, self) is None:
            pass
        if self.proceed():
            self._follow(partial(look_again, self))
        with self._turn:
            if self._is_over():
                self._ledger.leave_out(None, "stopped by the user")
        self._say_why()

    def _begin_with_what_needs_no_search(self) -> None:
        """The program's own operators at once; more as long as there is time for it."""
        if self._pieces is not None:
            return
        limits = self.bounds.searched.limits
        known: list[Candidate] = []
        for candidate in unsearched(self.program, self.target, limits, self.seed, self._ends_now):
            known.append(candidate)
            with self._turn:
                self._ledger.know_unsearched(known)
                self._first = self._first if self._first is not None else self._elapsed()
        if operators_of(self.program) > WORTH_CUTTING and not self._ends_now():
            self._pieces = Pieces(self.program, self.target, limits, self.seed, self._ends_now)
        self._verdicts = self._verify(known)

    def _verify(self, known: list[Candidate]) -> Iterator[None]:
        """The whole verdicts on what was screened, one after the other."""
        for _ in verified(known, self.seed):
            with self._turn:
                self._ledger.know_unsearched(known)
            yield
        if self._pieces is not None:
            yield from self._pieces.verify()
            self._make_wholes()

    def _ends_now(self) -> bool:
        """Whether this search is over; sits out a pause."""
        return not self.proceed() or self._allowed.search_is_over

    def _say_why(self) -> None:
        """After a search: why nothing was accepted, if so; not where that is for want of time."""
        with self._turn:
            tally, bounds, late = self._ledger.tally(), self.bounds, time.monotonic() >= self.search_ends
            if tally is None or late or self._thread is not threading.current_thread():
                return
        why = why_nothing(prepare(self.program, seed=self.seed), bounds.searched, bounds.budget, tally)
        with self._turn:
            if self._thread is threading.current_thread():
                self._ledger.why = why

    def _set_deadline(self) -> None:
        self._allowed.begin()
        self._tell_deadline()

    def _tell_deadline(self) -> None:
        if self._channel is not None:
            self._leave(partial(self._channel.move_deadline, self._allowed.search_ends))

    def _rested(self, seconds: float) -> None:
        """So many seconds, of a pause or of reading, are none of the session's."""
        self._allowed.rested(seconds)
        self._tell_deadline()

    def _restore(self) -> None:
        """Before the first search: what the checkpoint has."""
        if self._restored:
            return
        self._restored = True
        began = time.monotonic()
        facts, ended = as_stored(*self._recorder.restore())
        with self._turn:
            self._ledger.restore(facts)
            for found in ended:
                self._ledger.take(found)
            self._seconds += (counted := self._allowed.counted(facts.seconds))
            self._rested(time.monotonic() - began - counted)
            self._first = facts.first_seconds

    def _agenda(self) -> list[Task]:
        """What is to be explored within the present bounds: pieces that pay before the whole."""
        with self._turn:
            self._extended = False
            bounds = self.bounds
        whole = self._ledger.has_whole or not self._allowed.search_is_over
        self._programs = dict(explorable(self.program, self._pieces, bounds, self.seed, self.tell, whole))
        with self._turn:
            missing = self._ledger.open(tuple(self._programs), bounds)
            for limit in bounds.switches.limits(EFFORTS[bounds.effort]):
                self._ledger.leave_out(None, limit)
            if is_large(self.program):
                self._ledger.leave_out(None, IN_PIECES_ONLY)
            tasks = [self._task(configuration) for configuration in missing]
        self._make_wholes()
        return tasks

    def _task(self, configuration: Configuration) -> Task:
        assert self._channel is not None
        return Task(
            index=next(self._numbers), program=self._programs[configuration], configuration=configuration,
            bounds=self.bounds, target=self.target, seed=self.seed,
            deadline=self._allowed.search_ends, channel=self._channel,
        )  # fmt: skip

    def _make_wholes(self) -> None:
        """muGraphs of the program from those of its pieces."""
        if self._pieces is not None and any(c.piece for c in self._programs):
            with self._turn:
                self._ledger.know_wholes(self._pieces.wholes(self._ledger.of_piece))

    def made_of(self, digest: str) -> Made:
        """The pieces of a muGraph that was made from them; nothing for others."""
        return self._pieces.made_of(digest) if self._pieces is not None else ()

    def _head_start(self, tasks: Sequence[Task]) -> list[Task]:
        """Explore in this thread for a moment; returns the tasks that are left."""
        until = Moment.after(HEAD_START_SECONDS)
        for number, task in enumerate(tasks):
            own = until if task.deadline is None or task.deadline.ticks > until.ticks else task.deadline
            if own.is_past or not self.proceed():
                return list(tasks[number:])
            try:
                found = explore(replace(task, deadline=own), partial(self.posted, task))
            except Exception as error:  # noqa: BLE001  # one broken configuration must not lose the others
                self.left_out(task, failure(task, error))
                continue
            if found.unfinished and own == until and self.proceed():
                return list(tasks[number:])
            self.ended(found)
        return []

    def _oversee(self, crew: Crew) -> None:
        """See tasks through to their end. After an extension workers end what they are at; what that leaves
        open within the larger bounds is begun again. Whoever does not notice that time is over is ended."""
        stopped_at: float | None = None
        before: frozenset[Configuration] = frozenset()
        while (begun := crew.configurations) and (stopped_at is None or time.monotonic() - stopped_at < STOP_SECONDS):
            crew.step(TICK_SECONDS, again=stopped_at is None, paused=self._state is State.PAUSED)
            if stopped_at is not None:
                continue
            if self._state is State.RUNNING:
                next(self._verdicts, None)
            if self._renew_channel():
                before |= begun  # where the folder is missed the work is given up
            if self._is_over():
                stopped_at = time.monotonic()
            elif self._extended:
                crew.recall()
                before = crew.configurations
                crew.begin([task for task in self._agenda() if task.configuration not in before])
            elif self._state is State.RUNNING and self._allowed.search_is_over:
                return crew.give_up("the budget was over")
            elif before - crew.configurations:
                ended, before = before - crew.configurations, before & crew.configurations
                with self._turn:
                    tasks = [self._task(c) for c in self._ledger.missing if c in ended]
                crew.begin(tasks)
        crew.recall()

    # -- what becomes of tasks; called by the crew ---------------------------------------------------

    def posted(self, task: Task, findings: Findings) -> None:
        """Findings of a configuration that is not done."""
        with self._turn:
            if self._ledger.note(task.configuration, task.bounds, findings) and findings.candidates:
                self._first = self._first if self._first is not None else self._elapsed()
        if task.configuration.piece:
            self._make_wholes()
        with self._saving:
            self._recorder.partial(task.configuration, task.bounds, findings)

    def ended(self, found: Explored) -> None:
        """The end of a configuration, early or not."""
        with self._turn:
            self._ledger.take(found)
            if found.findings.candidates and self._first is None:
                self._first = self._elapsed()
        if found.configuration.piece:
            self._make_wholes()
        with self._saving:
            self._recorder.ended(found, self._facts())

    def left_out(self, task: Task, why: str) -> None:
        """A configuration that is not searched, and why."""
        with self._turn:
            self._ledger.leave_out(task.configuration, why)

    def _facts(self) -> Facts:
        with self._turn:
            return self._ledger.facts(self._elapsed(), self._first)

    def _save(self) -> None:
        with self._saving:
            self._recorder.save(self._facts())

    def _save_late(self) -> None:
        """After the end no supervising thread will do it."""
        if self._state not in (State.RUNNING, State.PAUSED):
            self._save()
