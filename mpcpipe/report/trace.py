"""A run in the Chrome trace event format, for ui.perfetto.dev and chrome://tracing.

One process a party, one thread a worker. On a worker's thread stand its actions, and inside each what it did:
computing, waiting, idle. Thread 0 has the steps. Counters: payload bytes sent so far, and how many workers compute.
Source: "Trace Event Format" (Google, 2016), the JSON object form; times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpcpipe.report.events import PartyEvents, Run
from mpcpipe.report.pieces import IDLE, WAITING

_NAMES = {WAITING: "waiting", IDLE: "idle"}
_COLOURS = {"computing": "good", "waiting": "bad", "idle": "grey"}
_KINDS = {
    "F": "forward",
    "B": "gradients of input and weights",
    "I": "gradient of the input",
    "W": "gradients of the weights",
    "U": "update",
}


def chrome_trace(run: Run) -> dict[str, Any]:
    """The whole run as one JSON object. Times begin at 0 with the first action of all."""
    first_s = min((e.begin_s + p.origin_s for p in run.parties for e in p.events), default=0.0)
    events = [entry for pid, party in enumerate(run.parties) for entry in _party(pid, party, first_s)]
    about = {"run": run.folder.name, "protocol": run.result["protocol"], "schedule": run.result.get("schedule", "")}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _party(pid: int, party: PartyEvents, first_s: float) -> Iterator[dict[str, Any]]:
    def us(seconds: float) -> float:
        return round((seconds + party.origin_s - first_s) * 1e6, 1)

    def slice_(tid: int, name: str, begin_s: float, end_s: float, **more: Any) -> dict[str, Any]:
        dur = round((end_s - begin_s) * 1e6, 1)
        return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": us(begin_s), "dur": dur, **more}

    threads = {worker: tid for tid, worker in enumerate(party.workers, 1)}
    yield _named("process_name", pid, 0, party.party)
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}
    yield _named("thread_name", pid, 0, "steps")
    for worker, tid in threads.items():
        yield _named("thread_name", pid, tid, f"worker {worker}")
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
    for step, own in party.by_step.items():
        yield slice_(0, f"step {step}", min(e.begin_s for e in own), max(e.end_s for e in own), cat="step")
    changes: list[tuple[float, int]] = []
    for event in party.events:
        tid = threads[event.worker]
        args = {
            "step": event.step,
            "computing_ms": round(event.compute_s * 1e3, 3),
            "waiting_ms": round(event.wait_s * 1e3, 3),
            "idle_ms": round(event.idle_s * 1e3, 3),
        }
        if event.sent_bytes is not None:
            args["sent_bytes"] = event.sent_bytes
        yield slice_(tid, event.action, event.begin_s, event.end_s, cat=_KINDS[event.kind], args=args)
        for piece in event.pieces():
            name = _NAMES.get(piece.sign, "computing")
            yield slice_(tid, name, piece.begin_s, piece.end_s, cname=_COLOURS[name])
            if name == "computing":
                changes += [(piece.begin_s, 1), (piece.end_s, -1)]
    computing = 0
    for at_s, change in sorted(changes):
        computing += change
        yield _counter(pid, "workers computing", us(at_s), computing)
    if all(event.sent_bytes is not None for event in party.events):
        sent = 0
        for event in sorted(party.events, key=lambda event: event.end_s):
            sent += event.sent_bytes or 0
            yield _counter(pid, "sent bytes", us(event.end_s), sent)


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _counter(pid: int, name: str, ts: float, value: int) -> dict[str, Any]:
    return {"ph": "C", "pid": pid, "name": name, "ts": ts, "args": {"value": value}}
