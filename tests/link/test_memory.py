"""Links in memory: frames arrive in order and checked; a stop reaches everybody."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mpcpipe.errors import FrameError, PeerLost, RangeError
from mpcpipe.link.base import Part
from mpcpipe.link.memory import MemoryNetwork, memory_meshes

EIGHT = Part(torch.int64, 8)


def test_three_parties_exchange_and_count_rounds() -> None:
    meshes = memory_meshes(3, deadline_s=10)

    def party(me: int) -> tuple[int, list[int]]:
        mesh, value = meshes[me], torch.full((8,), me)
        for turn in range(4):
            to, frm = (me + 1) % 3, (me - 1) % 3
            mesh.send(f"turn {turn}", {to: [value], frm: []})
            value = mesh.receive(f"turn {turn}", {frm: [EIGHT], to: []})[frm][0]
        return mesh.clock, value.tolist()

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(party, range(3)))
    assert results == [(4, [(me - 4) % 3] * 8) for me in range(3)]
    assert meshes[0].sent_payload_bytes == 4 * 64
    assert meshes[0].links[1].traffic.sent_wire_bytes == 4 * (64 + 59)
    assert meshes[0].links[2].traffic.received_payload_bytes == 4 * 64


def test_what_is_received_is_the_receivers_own() -> None:
    left, right = memory_meshes(2, deadline_s=10)
    sent = torch.arange(8)
    left.send("x", {1: [sent]})
    right.receive("x", {0: [EIGHT]})[0][0].zero_()
    assert torch.equal(sent, torch.arange(8))


@pytest.mark.parametrize(
    ("label", "expected", "message"),
    [
        ("y", [EIGHT], "'x' came"),
        ("x", [], "0 parts"),
        ("x", [EIGHT, EIGHT], "2 parts"),
        ("x", [Part(torch.int32, 8)], "8 elements of int32"),
        ("x", [Part(torch.int64, 7)], "7 elements of int64"),
    ],
)
def test_another_frame_is_an_error(label: str, expected: list[Part], message: str) -> None:
    left, right = memory_meshes(2, deadline_s=10)
    left.links[1].send("x", [torch.arange(8)])
    with pytest.raises(FrameError, match=message):
        right.links[0].receive(label, expected)


def test_a_clock_that_a_frame_could_not_count_on_from_is_refused() -> None:
    left, right = memory_meshes(2, deadline_s=10)
    left.links[1].send("x", [torch.arange(8)], clock=(1 << 32) - 1)
    with pytest.raises(FrameError, match="after 4294967295 rounds"):
        right.receive("x", {0: [EIGHT]})


def test_silence_ends_at_the_deadline() -> None:
    left, _ = memory_meshes(2, deadline_s=0.05)
    with pytest.raises(PeerLost, match=r"waited 0.05 s for 'x' from party 1"):
        left.links[1].receive("x", [EIGHT])


def test_a_closed_link_delivers_what_was_sent_then_is_lost() -> None:
    left, right = memory_meshes(2, deadline_s=10)
    left.send("x", {1: [torch.arange(8)]})
    left.close()
    left.close()
    right.receive("x", {0: [EIGHT]})
    for _ in range(2):
        with pytest.raises(PeerLost, match="party 0 closed"):
            right.receive("y", {0: [EIGHT]})
    with pytest.raises(PeerLost, match="it closed"):
        left.send("z", {1: [torch.arange(8)]})


def test_abort_wakes_every_waiter_with_one_cause() -> None:
    network = MemoryNetwork(3, workers=2, deadline_s=10)
    cause = RangeError("the tensor 'features' has 1e30, which does not fit")

    def wait(place: tuple[int, int, int]) -> BaseException:
        party, peer, worker = place
        try:
            network.mesh(party, worker).links[peer].receive("never", [EIGHT])
        except RangeError as error:
            return error
        raise AssertionError("nothing was raised")

    places = [(party, peer, worker) for party in range(3) for peer in range(3) if peer != party for worker in range(2)]
    with ThreadPoolExecutor(len(places)) as pool:
        waiting = [pool.submit(wait, place) for place in places]
        network.mesh(1).links[0].abort(cause)  # type: ignore[attr-defined]
        network.abort(RangeError("a second failure, caused by the first"))
        assert all(found.result(timeout=10) is cause for found in waiting)
    with pytest.raises(RangeError, match="features"):
        network.mesh(0).send("x", {1: [torch.arange(8)]})
