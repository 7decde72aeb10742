"""What a job file says, as frozen dataclasses: one class a table, one field a key.

Each field carries, as metadata, what the loader checks and what `docs` and `agreement` need: a sentence about it, its
range or choices, whether it is a path, and whether it is *public*. Public keys must be the same at all parties
(`job.digest`); private ones (files, own addresses, own folders) are nobody else's business. A field is public unless it
says otherwise.

This module imports nothing heavy, so that the command line answers at once.
"""

# `key` returns a dataclass field, and the tables that stand as defaults are frozen:
# ruff: noqa: RUF009

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any

MOST_SEED = 2**63 - 1


def key(
    about: str,
    default: Any = MISSING,
    *,
    public: bool = True,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    path: bool = False,
    auto: Any = MISSING,
) -> Any:
    """A field of a job, with what is checked of it: low and high are allowed themselves, above and below are not."""
    metadata = {
        "about": about,
        "public": public,
        "low": low,
        "high": high,
        "above": above,
        "below": below,
        "choices": choices,
        "path": path,
        "auto": auto,
    }
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class About:
    """[job]"""

    name: str = key("what to call the run, and its folder")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """[protocol]"""

    name: str = key("the secure computation's protocol; `mpcpipe doctor` lists them", "replicated3")
    ring_bits: int = key("bits of a secret number, 64 or 32", 64, low=32, high=64)
    fraction_bits: int = key("how many of them come after the point", 16, low=4, high=30)
    compare_bits: int = key(
        "bits that comparisons look at: values up to 2^(compare_bits - fraction_bits - 1); 0 is fraction_bits + 16",
        0,
        low=0,
        high=64,
    )

    store: str | None = key(
        "additive2: the folder of what the dealer dealt beforehand (`mpcpipe deal`); none: a dealer's process",
        None,
        public=False,
        path=True,
    )

    @property
    def limit(self) -> float:
        """Values of this magnitude or more do not fit: comparisons would be wrong."""
        return float(2.0 ** (self.compare_bits - 1 - self.fraction_bits))


@dataclass(frozen=True, kw_only=True)
class Parties:
    """[parties]"""

    names: tuple[str, ...] = key("the parties, in their order", ("alice", "bob", "carol"))
    hosts: tuple[str, ...] = key(
        'where each listens, "host:port"; none: all on this machine, at free ports', (), public=False
    )
    insecure_plaintext: bool = key(
        "allow shares to travel unencrypted between machines (for a network you trust)", False
    )
    fingerprints: tuple[str, ...] = key(
        "fingerprints of all parties' certificates, in order; `mpcpipe keys new` prints them; none: no TLS", ()
    )
    keys: str = key(
        "the folder with NAME.crt and NAME.key of this party, from the job file's folder", ".", public=False, path=True
    )


@dataclass(frozen=True, kw_only=True)
class Link:
    """[link]: what the workers' messages travel over. docs/launch.md has the commands."""

    kind: str = key(
        "tcp: connections of our own, TLS with parties.fingerprints; mpi: MPI (started by mpirun); torch: "
        "torch.distributed (started by torchrun or srun). The last two do not encrypt",
        "tcp",
        choices=("tcp", "mpi", "torch"),
    )
    rate: str | None = key(
        'with tcp: the rate of this party\'s line, such as "100Mbit/s"; what it sends is paced to it, so that small '
        "messages do not wait in a queue behind large ones",
        None,
        public=False,
    )


@dataclass(frozen=True, kw_only=True)
class Model:
    """[model]: a network of the zoo, or a function of yours that returns a torch.nn.Module."""

    zoo: str | None = key("a network of the zoo by name", None)
    module: str | None = key(
        '"package.module:function" or "file.py:function"; every party needs the same source', None, path=True
    )
    args: Mapping[str, Any] = key("arguments of the function that builds the network", {})
    seed: int = key("draws the initial weights, which are public", 1, low=0, high=MOST_SEED)
    reveal_to: str | None = key("the party that gets the trained model; without it, it stays shared", None)


@dataclass(frozen=True, kw_only=True)
class Source:
    """[data.features] and [data.labels], here or in a [[data.rows]]: where values come from. Their owner opens them."""

    owner: str | None = key("the party that has these columns (in [[data.rows]] it stands one level up)", None)
    source: str | None = key(
        'digits, idx, npz, csv, synthetic or "module:function"; only the owner needs to say', None, public=False
    )
    path: str | None = key("the file, from the job file's folder", None, public=False, path=True)
    array: str | None = key("npz: the array's name, where there are several", None, public=False)
    columns: tuple[str, ...] = key(
        "csv: names of the columns, in the order of the features; none: all", (), public=False
    )
    column: str | None = key("csv: name of the label's column", None, public=False)
    delimiter: str = key("csv: what separates columns", ",", public=False)
    seed: int = key("synthetic: draws the values", 1, low=0, high=MOST_SEED, public=False)
    args: Mapping[str, Any] = key("arguments of the function", {}, public=False)
    scale: float = key("features are divided by this, so that they are about 1", 1.0, above=0)
    mean: float = key("subtracted from features after that", 0.0)
    std: float = key("features are divided by this at last", 1.0, above=0)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """[[data.rows]]: rows that one party has, features and labels."""

    owner: str = key("the party that has these rows")
    train: tuple[int, int] = key("its rows to train on, [first, one past the last]")
    test: tuple[int, int] | None = key("its rows to test on", None)
    features: Source = key("where the features come from")
    labels: Source = key("where the labels come from")


@dataclass(frozen=True, kw_only=True)
class Data:
    """[data]: either columns (features and labels, each with its owner), or rows ([[data.rows]], each with its own)."""

    shape: tuple[int, ...] = key("shape of one row's features, such as [1, 28, 28]")
    classes: int = key("number of classes; labels are 0 to classes - 1", low=2)
    train: tuple[int, int] | None = key("columns: the rows to train on, [first, one past the last]", None)
    test: tuple[int, int] | None = key("columns: the rows to test on", None)
    shuffle: int | None = key(
        "a seed: put the rows into a random, public order before train and test are cut (for sorted files)", None, low=0
    )
    sharing: str = key("share rows batch by batch, or all once at the start", "batch", choices=("batch", "once"))
    features: Source | None = key("columns: the features", None)
    labels: Source | None = key("columns: the labels", None)
    rows: tuple[Rows, ...] = key("rows: who has which", ())


@dataclass(frozen=True, kw_only=True)
class Train:
    """[train]"""

    epochs: int = key("passes over the training rows", 1, low=1)
    batch_size: int = key("rows of a step; what is left of an epoch is dropped", 128, low=1)
    steps: int = key("stop after so many steps; 0: all", 0, low=0)
    loss: str = key("what training makes small", "cross_entropy", choices=("cross_entropy", "mean_squared_error"))
    optimizer: str = key("how", "sgd", choices=("sgd", "adam"))
    learning_rate: float = key("step size", 0.1, above=0)
    momentum: float = key("sgd: share of the last step that is kept", 0.0, low=0, below=1)
    nesterov: bool = key("sgd: look ahead along the momentum", False)
    weight_decay: float = key("pull of the weights towards 0", 0.0, low=0)
    beta1: float = key("adam: memory of the mean", 0.9, low=0, below=1)
    beta2: float = key("adam: memory of the squares", 0.999, low=0, below=1)
    epsilon: float = key("adam: added to the root; not below 2^-10", 2.0**-8, low=2.0**-10)
    schedule: str = key("of the learning rate", "constant", choices=("constant", "stepped", "cosine"))
    schedule_every: int = key("stepped: after so many epochs ...", 1, low=1)
    schedule_gamma: float = key("stepped: ... times this", 0.1, above=0, high=1)
    schedule_lowest: float = key("cosine: the rate at the end", 0.0, low=0)
    warmup_steps: int = key("steps over which the rate rises from 0", 0, low=0)
    seed: int = key("shuffles the rows and draws dropout masks; public", 1, low=0, high=MOST_SEED)


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """[evaluate]"""

    how: str = key(
        "secure: only the number of right answers is opened; revealed: by the party that learns the model; none",
        "secure",
        choices=("secure", "revealed", "none"),
    )
    every: int = key("after every so many epochs, and at the end; 0: at the end only", 0, low=0)
    batch_size: int = key("rows at once; 0: as in training", 0, low=0)
    clear_twin: bool = key(
        "train the same in the clear beside it, to compare; only where all parties run on this machine", False
    )


@dataclass(frozen=True, kw_only=True)
class Reveal:
    """[reveal]: what becomes known during training, besides the trained model."""

    loss_every: int = key("open the loss to all parties every so many steps; 0: never", 0, low=0)


@dataclass(frozen=True, kw_only=True)
class Run:
    """[run]: this party's own affairs."""

    output: str = key("folder for models, logs and reports, from where the command is run", "runs", public=False)
    connect_s: float = key("seconds to wait for the other parties at the start", 60.0, above=0, public=False)
    deadline_s: float = key("seconds to wait for a message", 60.0, above=0, public=False)
    threads: int = key("cores to use; 0: this machine's, divided by its parties", 0, low=0, public=False)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """[checkpoint]: each party's shares on its own disk, so that a run that was killed can go on (`train --resume`)."""

    every: int = key("steps between two checkpoints; 0: none", 0, low=0)
    keep: int = key("how many complete ones stay", 2, low=1, high=16, public=False)
    dir: str | None = key(
        "folder for them, from the job file's folder; none: in the run folder", None, public=False, path=True
    )
    key_file: str | None = key(
        "encrypt them with the key in this file (32 bytes, or 64 hexadecimal digits; mode 600); none: in plain",
        None,
        public=False,
        path=True,
    )


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """[pipeline]: how the model is cut into stages that work at the same time. The result stays (but with async)."""

    stages: tuple[int, ...] = key('the first layer of each stage, such as [0, 3, 6]; or "auto"', (0,), auto=())
    slots: tuple[int, ...] = key("workers of each stage; none: one each", (), auto=())
    microbatches: int = key('parts that a batch is worked on in; or "auto"', 1, low=1, auto=0)
    pieces: int = key(
        'pieces in which a micro-batch passes large layers, one computing while another is on the line; or "auto"',
        1,
        low=1,
        auto=0,
    )
    schedule: str = key(
        "the order of work",
        "sequential",
        choices=("auto", "sequential", "gpipe", "1f1b", "interleaved", "zero-bubble", "async"),
    )
    workers: str = key(
        "a party's workers as threads of one process, or as processes, each with links of its own",
        "threads",
        choices=("threads", "processes"),
    )
    file: str | None = key("a schedule of your own, as docs/pipeline.md has it", None, public=False, path=True)

    @property
    def leaves_choice(self) -> bool:
        """Is part of it left to the planner?"""
        return self.file is None and (
            not self.stages or not self.microbatches or not self.pieces or self.schedule == "auto"
        )


@dataclass(frozen=True, kw_only=True)
class Power:
    """[services.power]: the clocks of this party's GPU. Changes how fast and at how many joules, and nothing else."""

    policy: str = key(
        'who chooses: "off", "perseus" (the slowest clocks that leave a step its time), or another of docs/power.md',
        "off",
        public=False,
    )
    device: str = key(
        'which GPU: "nvidia", "nvidia:GPU-5f3a...", "amd", "hygon:0", "zeusd:0", or "simulated:a100-40gb"',
        "",
        public=False,
    )
    cap_w: float = key("the most power it may draw; 0: no cap", 0.0, low=0, public=False)
    deadline_s: float = key(
        "what a step may take, if it is longer than the fastest; 0: as fast as ever", 0.0, low=0, public=False
    )
    exchange_every: int = key(
        "after so many steps all parties tell each other one number, the shortest step that they can do; 0: never",
        0,
        low=0,
    )


@dataclass(frozen=True, kw_only=True)
class Services:
    """[services]: what runs beside the workers."""

    power: Power = key("the clocks of this party's GPU", Power())
    kernels: str = key(
        'what computes products: "native" (the C library), "auto" (by timing at the start, for each shape), or one for '
        "all; results are the same bits",
        "native",
        public=False,
        choices=("native", "auto", "products", "torch", "reference"),
    )
    use: tuple[str, ...] = key("further services: names of entry points mpcpipe.services", (), public=False)
    options: Mapping[str, Any] = key("a table of options for each of them", {}, public=False)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A whole job file: a field a table."""

    job: About = key("the run")
    protocol: Protocol = key("the secure computation", Protocol())
    parties: Parties = key("who takes part", Parties())
    link: Link = key("what messages travel over", Link())
    model: Model = key("what is trained")
    data: Data = key("on what, and who has it")
    train: Train = key("how", Train())
    evaluate: Evaluate = key("how well", Evaluate())
    reveal: Reveal = key("what becomes known on the way", Reveal())
    run: Run = key("this party's own affairs", Run())
    pipeline: Pipeline = key("who does what when", Pipeline())
    checkpoint: Checkpoint = key("what is kept to go on from", Checkpoint())
    services: Services = key("what runs beside the workers", Services())

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.job.name

    def number(self, party: str) -> int:
        """A party's number, by name."""
        return self.parties.names.index(party)
