"""One self-contained HTML page for a run: everything inline, nothing fetched, no script needed to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2

from mpcpipe.job.public import public_text
from mpcpipe.plan.plan import Plan
from mpcpipe.protocol.base import Opening
from mpcpipe.report import figures
from mpcpipe.report.chart import Chart, line_chart, time_chart
from mpcpipe.report.events import Run
from mpcpipe.report.lanes import chosen_steps, timeline
from mpcpipe.report.layers import LayerCost
from mpcpipe.report.openings import grouped, openings_of


@dataclass(frozen=True)
class Facts:
    """What is known of a run besides its folder.

    promise: the protocol's. plan: the prediction. layers: what each costs, by a dry run. expected: the openings that
    `mpcpipe check` lists. Whatever is None is left out of the page.
    """

    promise: str | None = None
    plan: Plan | None = None
    layers: tuple[LayerCost, ...] | None = None
    expected: tuple[Opening, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tile:
    """One figure at the top, and a line about it."""

    name: str
    value: str
    about: str


@dataclass(frozen=True)
class PartyRow:
    """Where a party's mean step goes, in shares of 100."""

    name: str
    compute_s: float
    wait_s: float
    idle_s: float
    sent_bytes: float
    peak_rss_bytes: float

    @property
    def step_s(self) -> float:
        """All three."""
        return self.compute_s + self.wait_s + self.idle_s

    def percent(self, seconds: float) -> float:
        """Of the step."""
        return round(100 * seconds / self.step_s, 2) if self.step_s else 0.0


def page(run: Run, facts: Facts) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mpcpipe.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"seconds": figures.seconds, "nbytes": figures.nbytes, "joules": figures.joules}
    names = names_of(run)
    lines = [timeline(run, step, name, facts.plan) for step, name in chosen_steps(run)]
    opened = openings_of(run.result["reveals"])
    return environment.get_template("page.html.jinja").render(
        run=run,
        result=run.result,
        facts=facts,
        title=run.job.name if run.job else run.folder.name,
        when=_when(run),
        arrangement=arrangement(run),
        warnings=_warnings(run),
        notes=(*run.notes, *facts.notes),
        tiles=_tiles(run, facts),
        loss=_loss(run),
        step_times=_step_times(run, facts),
        timelines=lines,
        kinds={kind for line in lines for kind in line.kinds},
        no_loss=_no_loss(run),
        shown=next((index for index, one in enumerate(lines) if one.name == "median"), 0),
        party_rows=party_rows(run, names),
        power=run.power,
        joules=_joules(run),
        watts=_watts(run),
        first=names[0],
        layers=facts.layers,
        most=max((layer.sent_bytes for layer in facts.layers or ()), default=0) or 1,
        total=sum(layer.sent_bytes for layer in facts.layers or ()),
        opened=grouped(opened, names),
        agrees=None if facts.expected is None else same_openings(opened, facts.expected),
        job_text=None if run.job is None else public_text(run.job, here=False).strip(),
        share=figures.share,
        about=_about(run),
    )


def names_of(run: Run) -> tuple[str, ...]:
    """All parties' names; numbers where they are not known."""
    count = len(run.result["sent_bytes_per_step"])
    if run.job is not None and len(run.job.parties.names) == count:
        return tuple(run.job.parties.names)
    return run.names if len(run.names) == count else tuple(f"party {number}" for number in range(count))


def same_openings(opened: Sequence[Opening], expected: Sequence[Opening]) -> bool:
    """The same, each as often, in whatever order."""

    def key(opening: Opening) -> tuple[str, int, tuple[int, ...]]:
        return opening.why, -1 if opening.to is None else opening.to, tuple(opening.shape)

    return sorted(map(key, opened)) == sorted(map(key, expected))


def arrangement(run: Run) -> str:
    """How the work was ordered, in words."""
    r = run.result
    stages, slots = r.get("stages") or [0], r.get("slots") or [1]
    if len(stages) == 1 and sum(slots) == 1 and r.get("microbatches", 1) == r.get("pieces", 1) == 1:
        return "one worker a party, one thing after another"
    first = f"{len(stages)} stage{'s' if len(stages) > 1 else ''} from layers {', '.join(map(str, stages))}"
    pieces = f", large layers in {r['pieces']} pieces" if r.get("pieces", 1) > 1 else ""
    return f"{r.get('schedule')}: {first}; {_slots(slots)}; {r.get('microbatches')} micro-batches{pieces}"


def _slots(slots: Sequence[int]) -> str:
    if len(set(slots)) == 1:
        return f"{slots[0]} slot{'s' if slots[0] > 1 else ''} each"
    return f"slots {', '.join(map(str, slots))}"


def party_rows(run: Run, names: Sequence[str]) -> tuple[PartyRow, ...]:
    """A row a party: means over the steps."""
    r = run.result
    keys = ("compute_s", "wait_s", "idle_s", "sent_bytes_per_step", "peak_rss_bytes")
    return tuple(PartyRow(name, *(float(r[key][number]) for key in keys)) for number, name in enumerate(names))


def _when(run: Run) -> str | None:
    origin = run.result.get("origin_unix_s")
    began = origin[0] if isinstance(origin, list) and origin else origin
    if not isinstance(began, int | float):
        return None
    return f"{datetime.fromtimestamp(began).astimezone():%-d %B %Y, %H:%M}"


def _warnings(run: Run) -> list[str]:
    warnings = []
    if run.result["protocol"] == "plaintext":
        warnings.append("plaintext protects nothing: every party saw all values of this run.")
    if run.result.get("insecure_keys"):
        warnings.append("--insecure-keys: all masks of this run can be worked out by anybody. Nothing was protected.")
    return warnings


def _tiles(run: Run, facts: Facts) -> list[Tile]:
    r = run.result
    tiles = []
    if r.get("accuracy") is not None:
        right, of = r["right"]
        clear = r.get("clear_accuracy")
        beside = f"; {clear:.1%} in the clear" if clear is not None else ""
        tiles.append(Tile("test accuracy", f"{r['accuracy']:.1%}", f"{right} of {of}{beside}"))
    elif r.get("clear_accuracy") is not None:
        tiles.append(Tile("accuracy in the clear", f"{r['clear_accuracy']:.1%}", "the secure model was not evaluated"))
    predicted = f"; {figures.seconds(facts.plan.predicted_step_s)} predicted" if facts.plan else ""
    tiles.append(Tile("a step", figures.seconds(r["step_s"]), f"median of {len(r['steps_s'])}{predicted}"))
    sent = r["sent_bytes_per_step"]
    tiles.append(Tile("sent a step", figures.nbytes(sum(sent)), f"by all; {figures.nbytes(max(sent))} at most by one"))
    tiles.append(Tile("rounds a step", f"{r['rounds_per_step']:,.0f}", "messages that wait for one another"))
    return tiles


def _loss(run: Run) -> Chart | None:
    losses = run.result["losses"]
    steps = run.result.get("loss_steps")
    if not steps or len(steps) != len(losses):
        steps = list(range(1, len(losses) + 1))
    return line_chart("the loss by step", steps, losses) if losses else None


def _no_loss(run: Run) -> str:
    every = run.job.reveal.loss_every if run.job else 0
    if every:
        return f"No loss was opened, though the job asks for one every {every} steps."
    return "Every loss stayed secret. With reveal.loss_every = N in the job, every N-th is opened to all parties."


def _step_times(run: Run, facts: Facts) -> Chart | None:
    took = run.result["steps_s"]
    steps = run.steps if len(run.steps) == len(took) else tuple(range(1, len(took) + 1))
    levels = [(run.result["step_s"], f"median {figures.seconds(run.result['step_s'])}", "measured")]
    if facts.plan:
        predicted_s = facts.plan.predicted_step_s
        levels.append((predicted_s, f"predicted {figures.seconds(predicted_s)}", "predicted"))
    return line_chart("seconds by step", steps, took, levels, in_seconds=True) if took else None


def _joules(run: Run) -> Chart | None:
    """Of the first party that had the power service."""
    if not run.power or len(run.power[0].joules) < 2:
        return None
    first = run.power[0]
    return line_chart(f"joules by step, {first.party}", list(first.joules), list(first.joules.values()))


def _watts(run: Run) -> Chart | None:
    """Of the same party, with its cap."""
    if not run.power:
        return None
    first = run.power[0]
    known = [(reading.at_s, reading.power_w) for reading in first.readings if reading.power_w is not None]
    return time_chart(f"watts over time, {first.party}", known, first.caps, known[-1][0]) if len(known) > 1 else None


def _about(run: Run) -> list[tuple[str, str]]:
    r = run.result
    rows = [(name, str(version)) for name, version in (r.get("versions") or {}).items()]
    kernels: dict[str, Any] = r.get("kernels") or {}
    if kernels:
        library = f"native, {kernels.get('isa')}" if kernels.get("path") else f"none: {kernels.get('reason')}"
        rows.append(("kernels", library))
    rows.append(("protocol", str(r["protocol"])))
    if r.get("link"):
        rows.append(("links", str(r["link"])))
    if run.job is not None:
        p = run.job.protocol
        rows.append(("numbers", f"ring 2^{p.ring_bits}, {p.fraction_bits} fraction bits, below {p.limit:g}"))
    if r.get("model_sha256"):
        rows.append(("model SHA-256", str(r["model_sha256"])))
    rows.append(("run folder", run.folder.name))
    return rows
