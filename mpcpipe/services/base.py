"""A service of one party: told what its workers do, never what they work on. Training does not depend on it.

    trainer ── begin ── step, step, ... ── end        each service, in the trainer's thread: it must answer at once
    workers ──── action, action ...                    and do what takes time in a thread of its own

A service that fails is told of and left out; the training goes on without it. Third parties register a `Service` class
through the entry point group `mpcpipe.services` and name it in the job: services.use = ["name"].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mpcpipe.errors import MpcpipeError
from mpcpipe.plan.actions import Schedule

Tell = Callable[[str], None]
"""Takes a sentence for the user."""


class SpanOf(Protocol):
    """One action of a worker, as `runtime.record.Span` has it. Times by `time.perf_counter`."""

    @property
    def worker(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def begin_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...
    @property
    def wait_s(self) -> float: ...
    @property
    def idle_s(self) -> float: ...
    @property
    def queued_s(self) -> float: ...


@dataclass(frozen=True)
class RunFacts:
    """What runs: all public. schedule: of one step, or of steps that run through. origin_s: of the events' clock."""

    party: int
    name: str
    parties: int
    steps: int
    schedule: Schedule
    origin_s: float
    run_folder: Path | None = None


@dataclass(frozen=True)
class StepFacts:
    """What has just been done: `steps` steps, of which `step` is the last, took from begin_s to end_s.

    compute_s, waiting_s: mean over the workers, of all these steps. spans: what each worker did when.
    """

    step: int
    steps: int
    begin_s: float
    end_s: float
    compute_s: float
    waiting_s: float
    spans: Sequence[SpanOf]

    @property
    def step_s(self) -> float:
        """Of one step."""
        return (self.end_s - self.begin_s) / self.steps


class Service(ABC):
    """Beside the workers of one party. Made before the parties connect, so that what is wrong is told at once."""

    def __init__(self, options: Mapping[str, Any], tell: Tell) -> None:
        self.options, self.tell = options, tell

    @abstractmethod
    def begin(self, run: RunFacts) -> None:
        """The parties are connected; training begins."""

    @abstractmethod
    def step(self, done: StepFacts) -> None:
        """A step is done. Answer within microseconds."""

    def action(self, worker: str, action: str, begins: bool) -> None:
        """An action begins to work, or has ended; called in its worker's thread, as the action takes place. Workers
        that are processes of their own are told of after the step only. Answer within microseconds."""
        return None

    def target_s(self) -> float | None:
        """The shortest step that this party can do within its limits: the one number that it tells the others."""
        return None

    def agreed(self, target_s: float) -> None:
        """The largest of all parties' numbers: nobody's step is shorter than that."""
        return None

    def end(self) -> Mapping[str, Any]:
        """Training is over: give everything back. Plain JSON values for the report."""
        return {}

    def close(self) -> None:
        """Give everything back, whatever happened; may come after `end`, or without `begin`."""
        return None


class Services:
    """All services of a party. None of them can stop the training: what fails is told once and left out."""

    def __init__(self, services: Mapping[str, Service], tell: Tell) -> None:
        self._services, self._tell = dict(services), tell
        self._live = [name for name, service in services.items() if type(service).action is not Service.action]

    def begin(self, run: RunFacts) -> None:
        """See `Service`."""
        self._each(lambda service: service.begin(run))

    def step(self, done: StepFacts) -> None:
        """See `Service`."""
        self._each(lambda service: service.step(done))

    def action(self, worker: str, action: str, begins: bool) -> None:
        """See `Service`; only those that want to know. In any thread."""
        for name in self._live:
            service = self._services.get(name)
            if service is not None:
                try:
                    service.action(worker, action, begins)
                except Exception as error:
                    self._live = [other for other in self._live if other != name]
                    self._tell(f"the service {name!r} is not told of actions any more: {type(error).__name__}: {error}")

    def target_s(self) -> float:
        """The largest number of all; 0: none has one."""
        numbers = self._each(lambda service: service.target_s())
        return max((number for number in numbers.values() if number is not None), default=0.0)

    def agreed(self, target_s: float) -> None:
        """See `Service`."""
        self._each(lambda service: service.agreed(target_s))

    def end(self) -> dict[str, Any]:
        """Each service's part of the report, by name."""
        return {name: dict(found) for name, found in self._each(lambda service: service.end()).items()}

    def close(self) -> None:
        """See `Service`."""
        self._each(lambda service: service.close())
        self._services.clear()

    def _each(self, call: Callable[[Service], Any]) -> dict[str, Any]:
        found = {}
        for name, service in list(self._services.items()):
            try:
                found[name] = call(service)
            except Exception as error:
                # A service is an extra, and may be anybody's code: whatever it does wrong, the training goes on.
                del self._services[name]
                kind = "" if isinstance(error, MpcpipeError) else f"{type(error).__name__}: "
                self._tell(f"the service {name!r} is left out from now on: {kind}{error}")
                self._close_failed(name, service)
        return found

    def _close_failed(self, name: str, service: Service) -> None:
        try:
            service.close()
        except Exception as error:
            self._tell(f"the service {name!r} could not be closed: {type(error).__name__}: {error}")
