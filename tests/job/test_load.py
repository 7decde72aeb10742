"""Reading job files: what is taken, and the sentence for each thing that is wrong."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mpcpipe.errors import JobError, PlanError, UsageError
from mpcpipe.job.check import address, training_rows
from mpcpipe.job.load import from_dict, load, to_dict
from tests.job.jobs import ROWS, TEXT, written

EXAMPLES = [
    path for path in sorted((Path(__file__).parents[2] / "examples").rglob("*.toml")) if path.name != "pyproject.toml"
]


MSE_LOSS = 'train.loss="mean_squared_error"'


def refused(folder: Path, old: str, new: str, *overrides: str, text: str = TEXT) -> str:
    """The JobError of a job in which `old` is replaced by `new`."""
    assert old in text
    with pytest.raises(JobError) as error:
        written(folder, text.replace(old, new), *overrides)
    return str(error.value)


def test_a_job(tmp_path: Path) -> None:
    job = written(tmp_path)
    assert (job.name, job.train.epochs, job.data.shape, job.data.train) == ("small", 2, (1, 8, 8), (0, 96))
    assert job.data.features is not None and job.data.features.owner == "alice"
    assert (job.number("carol"), training_rows(job)) == (2, 96)


def test_defaults(tmp_path: Path) -> None:
    job = written(tmp_path)
    p = job.protocol
    assert (p.name, p.ring_bits, p.fraction_bits, p.compare_bits, p.limit) == ("replicated3", 64, 16, 32, 2.0**15)
    assert (job.evaluate.how, job.reveal.loss_every, job.pipeline.microbatches) == ("secure", 0, 1)
    assert not job.parties.insecure_plaintext and job.parties.hosts == ()


def test_compare_bits_follow_the_fraction(tmp_path: Path) -> None:
    assert written(tmp_path, TEXT, "protocol.fraction_bits=20").protocol.compare_bits == 36
    small = written(tmp_path, TEXT, "protocol.ring_bits=32", "protocol.fraction_bits=12", MSE_LOSS).protocol
    assert (small.compare_bits, small.limit) == (28, 2.0**15)
    assert written(tmp_path, TEXT, "protocol.compare_bits=24").protocol.limit == 2.0**7


def test_rows_of_several_owners(tmp_path: Path) -> None:
    job = written(tmp_path, ROWS)
    assert [(part.owner, part.train, part.test) for part in job.data.rows] == [
        ("alice", (10, 60), (0, 10)),
        ("carol", (0, 30), None),
    ]
    assert job.data.rows[1].labels.seed == 4 and training_rows(job) == 80


@pytest.mark.parametrize("text", [TEXT, ROWS])
def test_round_trip_by_json(tmp_path: Path, text: str) -> None:
    job = written(tmp_path, text, "model.seed=7")
    assert from_dict(json.loads(json.dumps(to_dict(job)))) == job


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_load(path: Path) -> None:
    assert load(path).name == path.stem


def test_examples_are_all_there() -> None:
    assert {path.stem for path in EXAMPLES} >= {"digits", "lenet_mnist", "w1", "w2avg", "w2max", "w3", "w4"}


def test_a_job_is_loaded_without_torch_where_nothing_needs_it() -> None:
    code = "import sys, mpcpipe.job.schema, mpcpipe.job.load, mpcpipe.job.digest; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# paths and overrides


def test_paths_start_at_the_job_file_and_overrides_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT.replace('source = "synthetic"', 'source = "idx"\npath = "mnist/x.gz"')
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    job = written(tmp_path / "jobs", text)
    assert job.data.features is not None and job.data.features.path == str(tmp_path / "jobs" / "mnist" / "x.gz")
    job = written(tmp_path / "jobs", text, "data.features.path=other.gz", "data.labels.path=/absolute.gz")
    assert job.data.features is not None and Path(str(job.data.features.path)).resolve() == tmp_path / "other.gz"
    assert job.data.labels is not None and job.data.labels.path == "/absolute.gz"


def test_a_model_file_is_found_beside_the_job_and_a_package_is_not_a_path(tmp_path: Path) -> None:
    text = TEXT.replace('zoo = "digits_mlp"', 'module = "net.py:build"')
    assert written(tmp_path, text).model.module == f"{tmp_path / 'net.py'}:build"
    text = TEXT.replace('zoo = "digits_mlp"', 'module = "package.net:build"')
    assert written(tmp_path, text).model.module == "package.net:build"


def test_overrides(tmp_path: Path) -> None:
    job = written(
        tmp_path, TEXT, "train.epochs=3", "model.reveal_to=bob", "train.learning_rate=1", "data.train=[0, 64]",
        "evaluate.clear_twin=true", "model.zoo='digits_cnn'", "model.args.pool=max",
    )  # fmt: skip
    assert (job.train.epochs, job.model.reveal_to, job.train.learning_rate) == (3, "bob", 1.0)
    assert (job.data.train, job.evaluate.clear_twin, job.model.args) == ((0, 64), True, {"pool": "max"})
    assert written(tmp_path, ROWS, "data.rows[1].train=[0, 20]").data.rows[1].train == (0, 20)


@pytest.mark.parametrize("override", ["train.epochs", "=3", "train.epochs.more=1", "data.rows[0].train=[0, 1]"])
def test_malformed_overrides_are_usage_errors(tmp_path: Path, override: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        written(tmp_path, TEXT.replace("epochs = 2", "epochs = 2\n"), override)


def test_a_wrong_override_is_named_as_such(tmp_path: Path) -> None:
    message = refused(tmp_path, "epochs = 2", "epochs = 2", "train.epoch=3")
    assert message == "--set train.epoch: there is no such key; did you mean 'epochs'?"
    assert refused(tmp_path, "epochs = 2", "epochs = 2", "train.epochs=many").startswith(
        '--set train.epochs: is "many"'
    )


# files


def test_no_job_file(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no job file"):
        load(tmp_path / "none.toml")
    with pytest.raises(JobError, match="cannot be read"):
        load(tmp_path)


def test_not_toml(tmp_path: Path) -> None:
    assert "is not valid TOML" in refused(tmp_path, "epochs = 2", "epochs = = 2")
    assert "line 26" in refused(tmp_path, "epochs = 2", "epochs = = 2")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(JobError, match="cannot be read"):
        load(tmp_path / "bytes.toml")


# keys


def test_an_unknown_key_has_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    message = refused(tmp_path, "epochs = 2", "epoch = 2")
    assert message == f"{tmp_path / 'job.toml'}, line 26: train.epoch: there is no such key; did you mean 'epochs'?"


def test_a_key_in_the_wrong_table(tmp_path: Path) -> None:
    message = refused(tmp_path, 'name = "small"', 'name = "small"\nbatch_size = 3')
    assert "line 3: job.batch_size: there is no such key; did you mean train.batch_size" in message


def test_an_unknown_table(tmp_path: Path) -> None:
    assert "trian: there is no such key; did you mean 'train'?" in refused(tmp_path, "[train]", "[trian]")
    assert "network: there is no such key; known here: job, protocol" in refused(tmp_path, "[train]", "[network]")


def test_a_missing_key(tmp_path: Path) -> None:
    assert "line 11: data.classes: is missing: number of classes" in refused(tmp_path, "classes = 10\n", "")
    with pytest.raises(JobError, match="job: is missing"):
        written(tmp_path, TEXT.replace('[job]\nname = "small"', ""))


TYPES = [
    ("epochs = 2", 'epochs = "two"', 'line 26: train.epochs: is "two"; it must be a whole number'),
    ("epochs = 2", "epochs = 2.5", "train.epochs: is 2.5; it must be a whole number"),
    ("epochs = 2", "epochs = true", "train.epochs: is true; it must be a whole number"),
    ("epochs = 2", 'learning_rate = "0.1"', 'train.learning_rate: is "0.1"; it must be a number'),
    ("epochs = 2", "nesterov = 1", "train.nesterov: is 1; it must be true or false"),
    ('zoo = "digits_mlp"', "zoo = 3", "model.zoo: is 3; it must be text in quotes"),
    ("train = [0, 96]", "train = 96", "data.train: is 96; it must be a list"),
    ("train = [0, 96]", "train = [0, 96, 1]", "data.train: has 3 entries; it must have 2"),
    ("train = [0, 96]", "train = [0, 9.5]", "data.train[1]: is 9.5; it must be a whole number"),
    ('names = ["alice", "bob", "carol"]', "names = [1, 2, 3]", "parties.names[0]: is 1; it must be text"),
    ("[train]\nepochs = 2\nbatch_size = 32", "train = 3", "data.labels.train"),
    ('zoo = "digits_mlp"', 'zoo = "digits_mlp"\nargs = 3', "model.args: is 3; it must be a table"),
]


@pytest.mark.parametrize(("old", "new", "message"), TYPES)
def test_types(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert message in refused(tmp_path, old, new)


RANGES = [
    ("epochs = 2", "epochs = 0", "line 26: train.epochs: is 0; it must be at least 1"),
    ("epochs = 2", "learning_rate = 0", "train.learning_rate: is 0.0; it must be more than 0"),
    ("epochs = 2", "learning_rate = nan", "train.learning_rate: is nan; it must be a finite number"),
    ("epochs = 2", "learning_rate = inf", "train.learning_rate: is inf; it must be a finite number"),
    ("epochs = 2", "seed = 99999999999999999999", "train.seed: is 99999999999999999999; it must be at most"),
    (
        "test = [96, 128]",
        "test = [96, 1000000000]",
        "data.test: is [96, 1000000000]; there may be 100000000 rows at most",
    ),
    ("epochs = 2", "momentum = 1.0", "train.momentum: is 1.0; it must be less than 1"),
    ("epochs = 2", "weight_decay = -1e-4", "train.weight_decay: is -0.0001; it must be at least 0"),
    ("epochs = 2", 'optimizer = "adamw"', "train.optimizer: is 'adamw'; did you mean 'adam'? It is one of sgd, adam."),
    ("epochs = 2", 'loss = "cross-entropy"', "did you mean 'cross_entropy'?"),
    ("epochs = 2", 'schedule = "linear"', "It is one of constant, stepped, cosine."),
    ("classes = 10", "classes = 1", "data.classes: is 1; it must be at least 2"),
    ("classes = 10", 'classes = 10\nsharing = "never"', "data.sharing: is 'never'"),
    ("shape = [1, 8, 8]", "shape = [1, 0, 8]", "data.shape: is [1, 0, 8]; it must be positive sizes"),
    ("shape = [1, 8, 8]", "shape = []", "data.shape: is []"),
    ("train = [0, 96]", "train = [96, 0]", "line 14: data.train: is [96, 0]; it must be [first, one past the last]"),
    ("test = [96, 128]", "test = [90, 128]", "line 15: data.test: overlaps with train"),
    ("batch_size = 32", "batch_size = 97", "line 27: train.batch_size: is 97, but there are only 96 rows to train on"),
    ("batch_size = 32", "batch_size = 32\n[pipeline]\nschedule = 'gpip'", "pipeline.schedule: is 'gpip'"),
    ("batch_size = 32", "batch_size = 32\n[run]\ndeadline_s = 0", "run.deadline_s: is 0.0; it must be more than 0"),
]


@pytest.mark.parametrize(("old", "new", "message"), RANGES)
def test_ranges_and_choices(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert message in refused(tmp_path, old, new)


# parts that must fit together

FEATURES = 'source = "synthetic"\n\n[data.labels]'
LABELS = 'source = "synthetic"\n\n[train]'
TOGETHER = [
    ('"carol"]', '"carol"]\nhosts = ["127.0.0.1:1"]', "line 6: parties.hosts: has 1 entries for 3 parties"),
    ('"carol"]', '"carol"]\nhosts = ["a:1", "b:2", "c"]', "parties.hosts[2]: is 'c'; it must be \"host:port\""),
    ('"carol"]', '"carol"]\n[link]\nrate = "100 MB/s"', "link.rate: is '100 MB/s': write a number and one of kbps"),
    ('"carol"]', '"carol"]\n[link]\nrate = "0Mbps"', "link.rate: is '0Mbps': a line's rate is positive"),
    ('"carol"]', '"carol"]\n[link]\nrate = "1Gbps"\nkind = "mpi"', "link.rate: paces connections of our own, and"),
    ('"carol"]', '"bob"]', "parties.names: has 'bob' twice"),
    ('"carol"]', '"no one"]', "parties.names[2]: is 'no one'"),
    ('"bob", "carol"]', '"bob"]', "parties.names: has 2 names; replicated3 is for 3 parties"),
    ('reveal_to = "alice"', 'reveal_to = "alcie"', "line 9: model.reveal_to: is 'alcie', which is none of the parties"),
    ('zoo = "digits_mlp"', "", "line 7: model: give one of zoo"),
    ('zoo = "digits_mlp"', 'zoo = "digits_mlp"\nmodule = "a:b"', "model: give one of zoo"),
    ('zoo = "digits_mlp"', 'module = "net.py"', "model.module: is"),
    ('zoo = "digits_mlp"', 'zoo = "digit_mlp"', "line 8: model.zoo: there is no model 'digit_mlp'; did"),
    ('zoo = "digits_mlp"', 'zoo = "lenet"\nargs = { pol = "max" }', "model.args.pol: the model 'lenet' takes pool"),
    ('zoo = "digits_mlp"', 'zoo = "lenet"\nargs = { pool = 3 }', "model.args.pool: is 3; it must be of type str"),
    ('owner = "alice"', "", "line 17: data.features.owner: is missing"),
    ('owner = "alice"', 'owner = "dave"', "line 18: data.features.owner: is 'dave'"),
    ("train = [0, 96]\n", "", "data.train: is missing"),
    ('[data.labels]\nowner = "bob"\nsource = "synthetic"', "", "line 11: data: say who has the labels"),
    (LABELS, 'source = "synthetic"\nscale = 2\n\n[train]', "data.labels: scale, mean and std are"),
    (FEATURES, 'source = "mnist"\n\n[data.labels]', "data.features.source: is 'mnist'; it is one of"),
    (FEATURES, 'source = "idx"\n\n[data.labels]', "data.features.path: is missing"),
    (FEATURES, 'source = "digits"\npath = "x"\n\n[data.labels]', "data.features.path: does not go"),
    (FEATURES, 'source = "csv"\npath = "x"\ncolumn = "a"\n\n[data.labels]', "data.features.column: does"),
    (LABELS, 'source = "csv"\npath = "x"\n\n[train]', "data.labels.column: is missing"),
    (LABELS, 'source = "csv"\npath = "x"\ncolumn = "y"\ndelimiter = ""\n[train]', "one character"),
    ("test = [96, 128]\n", "", "evaluate.how: is 'secure', but there are no test rows"),
    ('reveal_to = "alice"', '[evaluate]\nhow = "revealed"', "but model.reveal_to names no party"),
    ("[train]", "[protocol]\nring_bits = 48\n[train]", "protocol.ring_bits: is 48; it must be 64 or 32"),
    ("[train]", "[protocol]\nring_bits = 32\n[train]", "protocol.fraction_bits: is 16; products need twice as many"),
    ("[train]", "[protocol]\nring_bits = 32\nfraction_bits = 12\n[train]", "train.loss: is 'cross_entropy', whose"),
    ("[train]", "[protocol]\ncompare_bits = 17\n[train]", "protocol.compare_bits: is 17; it must be 18 to 64"),
    ("[train]", '[protocol]\nname = "replicated"\n[train]', "protocol.name: there is no protocol 'replicated'"),
    ('name = "small"', 'name = "../../elsewhere"', "job.name: is '../../elsewhere'; a name is at most 100"),
    ('name = "small"', 'name = ""', "job.name: is ''"),
]  # fmt: skip


DEALERS = [
    (
        'owner = "alice"',
        'owner = "carol"',
        "data.features.owner: is 'carol': the dealer is one of the parties with data",
    ),
    ('owner = "bob"', 'owner = "carol"', "data.labels.owner: is 'carol': the dealer is one of the parties with data"),
    ('reveal_to = "alice"', 'reveal_to = "carol"', "model.reveal_to: is 'carol': the dealer of additive2 must not"),
]


@pytest.mark.parametrize(("old", "new", "message"), DEALERS)
def test_a_dealer_has_no_data_and_gets_no_model(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert message in refused(tmp_path, old, new, "protocol.name=additive2")
    written(tmp_path, TEXT, "protocol.name=additive2")


def test_two_parties_need_a_dealer(tmp_path: Path) -> None:
    message = refused(tmp_path, '"bob", "carol"]', '"bob"]', "protocol.name=additive2")
    assert "parties.names: has 2 names; additive2 is for 3 parties, the last of which is its dealer" in message


def test_a_dealer_has_no_rows(tmp_path: Path) -> None:
    message = refused(tmp_path, "[train]", "[train]", "protocol.name=additive2", text=ROWS)
    assert "data.rows[1].owner: is 'carol': the dealer is one of the parties with data" in message


@pytest.mark.parametrize(("old", "new", "message"), TOGETHER)
def test_parts_that_do_not_fit(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert message in refused(tmp_path, old, new)


ROWS_ERRORS = [
    ("[data]", "[data]\ntrain = [0, 1]", "line 8: data.train: does not go with [[data.rows]]"),
    ('owner = "carol"', 'owner = "dave"', "line 19: data.rows[1].owner: is 'dave'"),
    ('owner = "carol"', 'onwer = "carol"', "line 19: data.rows[1].onwer: there is no such key; did you mean 'owner'?"),
    (
        "[data.rows.labels]\nsource",
        "[data.rows.labels]\nowner = 'bob'\nsource",
        "data.rows[1].labels.owner: is not needed",
    ),
    ("train = [0, 30]", "train = [0, 30]\ntest = [29, 31]", "line 21: data.rows[1].test: overlaps"),
    ("seed = 3", "seed = -3", "line 24: data.rows[1].features.seed: is -3"),
    ('labels = { source = "synthetic", seed = 2 }', "", "line 11: data.rows[0].labels: is missing"),
    ("batch_size = 16", "batch_size = 81", "only 80 rows"),
]


@pytest.mark.parametrize(("old", "new", "message"), ROWS_ERRORS)
def test_rows_that_do_not_fit(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert message in refused(tmp_path, old, new, text=ROWS)


def test_more_microbatches_than_rows(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"pipeline\.microbatches is 33, more than train\.batch_size, 32"):
        written(tmp_path, TEXT, "pipeline.microbatches=33")


def test_the_planner_may_choose(tmp_path: Path) -> None:
    pipeline = written(tmp_path, TEXT, "pipeline.microbatches=auto", "pipeline.stages=auto").pipeline
    assert (pipeline.stages, pipeline.microbatches) == ((), 0)


def test_who_does_not_own_the_data_need_not_say_where_it_is(tmp_path: Path) -> None:
    job = written(tmp_path, TEXT.replace('source = "synthetic"\n', ""))
    assert job.data.features is not None and job.data.features.source is None


def test_addresses() -> None:
    assert address("127.0.0.1:9001") == ("127.0.0.1", 9001)
    assert address("[::1]:65535") == ("::1", 65535)
    for wrong in ("localhost", "host:", ":90", "host:0", "host:65536", "host:x", "host:-1"):
        with pytest.raises(ValueError, match="host:port"):
            address(wrong)


def test_every_key_says_what_it_is() -> None:
    from mpcpipe.job.schema import Job

    tables = [Job]
    for table in tables:
        for field in dataclasses.fields(table):
            assert field.metadata["about"], f"{table.__name__}.{field.name}"
