"""One root cause at every party: an error of one, a party killed, a party stopped, a party that only seems lost."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from link_parties import NAMES, addresses, listeners, networks, together

from mpcpipe.errors import Interrupted, MpcpipeError, PeerLost, RangeError
from mpcpipe.link.base import Part
from mpcpipe.link.control import Watch
from mpcpipe.link.mesh import connect
from mpcpipe.link.network import Network

FOUR = Part(torch.int64, 4)
ROOT = pathlib.Path(__file__).resolve().parents[2]


def wait_for_everything(found: list[Network], parties: list[int]) -> list[Exception]:
    """What each of `parties` raises while it waits for both others, in both workers."""

    def wait(place: int) -> None:
        party, worker, peer = place // 4, place // 2 % 2, (place // 4 + 1 + place % 2) % 3
        found[party].mesh(worker).receive("never", {peer: [FOUR]})

    return together(wait, [4 * party + place for party in parties for place in range(4)])


def test_an_error_at_one_party_is_the_error_of_all() -> None:
    with networks(3, workers=2) as found:
        cause = RangeError("the tensor 'features' has a value of 2^40")
        stopper = threading.Thread(target=lambda: found[1].abort(cause))
        stopper.start()
        errors = wait_for_everything(found, [0, 1, 2])
        stopper.join(10)
        for index, error in enumerate(errors):
            assert type(error) is RangeError
            prefix = "" if index // 4 == 1 else "bob: "
            assert str(error) == f"{prefix}the tensor 'features' has a value of 2^40"
        found[0].abort(MpcpipeError("a consequence"))
        assert type(found[0].failure) is RangeError
        with pytest.raises(RangeError):
            found[2].mesh().send("more", {0: [torch.arange(4)]})


def test_an_unexpected_error_is_told_without_its_text() -> None:
    with networks(2) as found:
        with pytest.raises(ZeroDivisionError), found[0]:
            raise ZeroDivisionError("secret value 1234")
        with pytest.raises(MpcpipeError, match=r"^alice: stopped by an unexpected ZeroDivisionError$"):
            found[1].mesh().receive("x", {0: [FOUR]})


def test_control_c_at_one_party_stops_the_others_as_such() -> None:
    with networks(2) as found:
        with pytest.raises(KeyboardInterrupt), found[1]:
            raise KeyboardInterrupt
        with pytest.raises(Interrupted, match=r"^bob: stopped by the user$"):
            found[0].mesh().receive("x", {1: [FOUR]})


def test_a_long_message_still_fits_a_control_frame() -> None:
    with networks(2) as found:
        found[0].abort(RangeError("é" * 100_000))
        with pytest.raises(RangeError, match=r"^alice: éé"):
            found[1].mesh().receive("x", {0: [FOUR]})


def test_silence_is_counted_only_while_this_process_runs() -> None:
    watch = Watch([1, 2], 0.0, beat_s=0.5, silence_s=4.0)
    for turn in range(1, 8):
        watch.turn(0.5 * turn)
        watch.heard(1)
        assert watch.silent() == []
    assert watch.ends_at_s() == 4.0
    watch.turn(4.0)
    assert watch.silent() == [2]
    # Five seconds without a turn: everybody gets a new chance, and is lost four seconds of turns later.
    watch.turn(9.0)
    assert watch.silent() == [] and watch.ends_at_s() == 13.0
    for turn in range(1, 9):
        watch.turn(9.0 + 0.5 * turn)
        watch.heard(2)
    assert watch.silent() == [1]
    watch.forget(1)
    assert watch.silent() == [] and watch.peers == [2]


BOB = """
import sys, torch
from mpcpipe.link.mesh import connect
places = [("127.0.0.1", int(port)) for port in sys.argv[1:4]]
network = connect(1, places, workers=2, names=["alice", "bob", "carol"], deadline_s=60)
mesh = network.mesh()
mesh.send("ready", {0: [torch.arange(4)], 2: [torch.arange(4)]})
sys.stdin.read()
"""


@contextmanager
def bob_elsewhere() -> Iterator[tuple[list[Network], subprocess.Popen[bytes]]]:
    """Alice and Carol in this process, Bob in one of his own, all ready."""
    sockets = listeners(3)
    places = addresses(sockets)
    sockets[1].close()
    bob = subprocess.Popen(
        [sys.executable, "-c", BOB, *(str(port) for _, port in places)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found: list[Network] = []
    try:
        found = together(
            lambda me: connect(me, places, workers=2, names=NAMES, deadline_s=60, listener=sockets[me]), [0, 2], 90
        )
        for network in found:
            network.mesh().receive("ready", {1: [FOUR]})
        yield found, bob
    finally:
        bob.kill()
        bob.wait(10)
        assert bob.stdin is not None
        bob.stdin.close()
        for network in found:
            if isinstance(network, Network):
                network.close()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_party_killed_or_stopped_is_lost_to_all_within_five_seconds(fault: signal.Signals) -> None:
    with bob_elsewhere() as (found, bob):
        # Alice waits for Bob, Carol waits for Alice: both must learn that it is Bob's fault.
        started = time.monotonic()
        bob.send_signal(fault)
        errors = together(lambda me: found[me].mesh(1).receive("x", {1 - me: [FOUR]}), [0, 1])
        elapsed = time.monotonic() - started
        said = {signal.SIGKILL: "bob went away: its connection", signal.SIGSTOP: "bob stopped answering: nothing"}[
            fault
        ]
        assert [type(error) for error in errors] == [PeerLost, PeerLost]
        assert str(errors[0]) == str(errors[1]) and str(errors[0]).startswith(said)
        assert elapsed < 5


def test_large_frames_on_the_way_do_not_hide_a_loss() -> None:
    with bob_elsewhere() as (found, bob):
        found[0].mesh().send("big", {1: [torch.zeros(8 << 20, dtype=torch.int64)]})
        bob.kill()
        with pytest.raises(PeerLost, match="bob went away"):
            found[0].mesh().receive("x", {1: [FOUR]})
        started = time.monotonic()
        found[0].close()
        assert time.monotonic() - started < 5
