"""Delay and rate, with a clock that moves only when somebody sleeps."""

import pytest
import torch

from mpcpipe.link.base import Part
from mpcpipe.link.memory import memory_meshes
from mpcpipe.link.shaped import Line, ShapedLink, shape


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def pair(rtt_s: float, rate: float) -> tuple[Clock, ShapedLink, ShapedLink]:
    clock = Clock()
    left, right = memory_meshes(2, deadline_s=10)
    ends = [
        ShapedLink(mesh.links[1 - mesh.party], rtt_s, rate, clock=clock, sleep=clock.sleep) for mesh in (left, right)
    ]
    return clock, *ends


FRAME = 941 + 59  # payload and header: 1000 bytes on the wire
PART = Part(torch.uint8, 941)


def test_a_ping_costs_a_round_trip_and_two_serialisations() -> None:
    clock, left, right = pair(rtt_s=0.04, rate=1e6)
    left.send("ping", [torch.zeros(941, dtype=torch.uint8)])
    right.receive("ping", [PART])
    assert clock.now == pytest.approx(100 + 0.001 + 0.02)
    right.send("pong", [torch.zeros(941, dtype=torch.uint8)])
    left.receive("pong", [PART])
    assert clock.now == pytest.approx(100 + 0.002 + 0.04)
    assert left.traffic.wait_s == pytest.approx(0.021)


def test_frames_queue_on_the_line_and_overlap_on_the_way() -> None:
    clock, left, right = pair(rtt_s=0.04, rate=1e6)
    for index in range(5):
        left.send(f"frame {index}", [torch.zeros(941, dtype=torch.uint8)], clock=index)
    for index in range(5):
        _, stamp = right.receive(f"frame {index}", [PART])
        assert stamp == index
        assert clock.now == pytest.approx(100 + 0.001 * (index + 1) + 0.02)


def test_directions_do_not_disturb_each_other() -> None:
    clock, left, right = pair(rtt_s=0.0, rate=1e6)
    left.send("a", [torch.zeros(941, dtype=torch.uint8)])
    right.send("b", [torch.zeros(941, dtype=torch.uint8)])
    right.receive("a", [PART])
    left.receive("b", [PART])
    assert clock.now == pytest.approx(100.001)


def test_links_that_share_a_line_share_its_rate() -> None:
    clock = Clock()
    line = Line(1e6, clock)
    assert [line.depart(1000), line.depart(1000)] == pytest.approx([100.001, 100.002])
    clock.now = 101.0
    assert line.depart(500) == pytest.approx(101.0005)


def test_a_late_receiver_waits_for_nothing() -> None:
    clock, left, right = pair(rtt_s=0.04, rate=1e6)
    left.send("x", [torch.zeros(941, dtype=torch.uint8)])
    clock.now += 5
    right.receive("x", [PART])
    assert clock.now == 105.0 and right.traffic.wait_s == 0


def test_counters_are_those_of_the_plain_link() -> None:
    _, left, right = pair(rtt_s=0.0, rate=1e9)
    left.send("x", [torch.arange(10), torch.zeros(3, dtype=torch.int32)])
    parts, _ = right.receive("x", [Part(torch.int64, 10), Part(torch.int32, 3)])
    assert [part.tolist() for part in parts] == [list(range(10)), [0, 0, 0]]
    assert (left.traffic.sent_frames, left.traffic.sent_payload_bytes) == (1, 92)
    assert left.traffic.sent_wire_bytes == 92 + 50 + 2 * 9
    assert right.traffic.received_payload_bytes == 92


def test_a_shaped_mesh_in_real_time() -> None:
    left, right = (shape(mesh, rtt_s=0.02, rate_bytes_per_s=1e9) for mesh in memory_meshes(2, deadline_s=10))
    left.send("x", {1: [torch.arange(4)]})
    received = right.receive("x", {0: [Part(torch.int64, 4)]})
    assert received[0][0].tolist() == [0, 1, 2, 3] and right.clock == 1
    assert right.wait_s >= 0.0
    left.close()


def test_a_line_needs_a_rate() -> None:
    with pytest.raises(ValueError, match="positive"):
        Line(0)
