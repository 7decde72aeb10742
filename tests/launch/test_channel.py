"""What the processes of a party hand to each other arrives as it was, without pickle, and memory is used again."""

from __future__ import annotations

import gc
import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mpcpipe.errors import FrameError, PeerLost
from mpcpipe.nn.fixed import Fixed
from mpcpipe.plan.actions import Action, Done
from mpcpipe.plan.schedule import build
from mpcpipe.protocol.additive2.linear import Operand
from mpcpipe.protocol.base import Opening
from mpcpipe.protocol.replicated4.evidence import Snapshot
from mpcpipe.runtime.processes import packing
from mpcpipe.runtime.processes.channel import SHARED_BYTES, Channel
from mpcpipe.runtime.processes.fellows import Fellows

DEADLINE_S = 20


def same(one: Any, other: Any) -> bool:
    """Equal, tensors by value, dtype and device, and with what is kept with them."""
    if isinstance(one, torch.Tensor):
        kept = vars(one).keys() == vars(other).keys() and all(same(vars(one)[k], vars(other)[k]) for k in vars(one))
        alike = (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)
        return kept and alike and (one.is_meta or torch.equal(one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return same(vars(one), vars(other)) if hasattr(one, "__dict__") else bool(one == other)


def with_kept(x: torch.Tensor) -> torch.Tensor:
    vars(x)["_additive2_operand"] = Operand(torch.arange(3), True, torch.arange(3) + 1)
    return x


VALUES = [
    None,
    (1, -(2**70), 0.1, "ä", b"\x00\xff", True, [], (), [(1,), [2]]),
    {(0, 1): b"key", "name": {2: None}},
    Fixed(torch.tensor([[1, -(2**63)], [2**63 - 1, 0]]), 16),
    [Done(Action(2, "F", 7)), Done(Action(0, "U"), 3)],
    {1: Snapshot(4, {(0, 1, 2): 2**61 - 2})},
    Opening("loss", None, (2, 3)),
    Fixed(torch.empty((1, 4, 5), dtype=torch.int32, device="meta"), 3),
    with_kept(torch.tensor([5, 6, 7])),
    torch.arange(12).reshape(3, 4).T,
    (torch.empty((0, 2), dtype=torch.int64), torch.tensor([True, False]), torch.tensor(1.5)),
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_comes_back(value: Any) -> None:
    data, tensors = packing.pack(value)
    flat = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
    assert packing.sizes(data) == [len(part) for part in flat]
    assert same(packing.unpack(data, flat), value)


def test_only_what_is_listed_is_packed() -> None:
    with pytest.raises(TypeError, match="type is not handed"):
        packing.pack(("put", socket.socket))
    with pytest.raises(TypeError, match="function is not handed"):
        packing.pack(lambda: None)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"v": {"#": "Popen", "v": []}, "t": []}', '{"v": {"T": 0}, "t": []}',
     '{"v": {"T": 0}, "t": [["int64", [3], false]]}', '{"v": {"T": 0}, "t": [["object", [3], true]]}'],
)  # fmt: skip
def test_what_cannot_be_read_is_a_frame_error(content: str) -> None:
    with pytest.raises(FrameError):
        packing.unpack(content.encode(), [])


@pytest.fixture(params=["unix", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Channel, Channel, queue.Queue[Any]]]:
    if request.param == "unix":
        pair = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            left = socket.create_connection(listener.getsockname())
            pair = left, listener.accept()[0]
    one, other = map(Channel, pair)
    heard: queue.Queue[Any] = queue.Queue()
    one.start("one", heard.put, lambda: heard.put("end"))
    other.start("other", heard.put, lambda: heard.put("end"))
    yield one, other, heard
    one.close()
    other.close()


@pytest.mark.parametrize("elements", [0, 1, SHARED_BYTES // 8 - 1, SHARED_BYTES // 8, 1 << 20])
def test_tensors_of_every_size_arrive(ends: tuple[Channel, Channel, queue.Queue[Any]], elements: int) -> None:
    one, _, heard = ends
    parts = [torch.arange(elements) * 2**40 + i for i in range(5)]
    one.send(("put", parts, "after"))
    kind, found, after = heard.get(timeout=DEADLINE_S)
    assert (kind, after) == ("put", "after") and same(found, parts)


def test_more_tensors_than_descriptors_fit_a_message(ends: tuple[Channel, Channel, queue.Queue[Any]]) -> None:
    one, _, heard = ends
    parts = [torch.full((SHARED_BYTES // 8,), i) for i in range(230)]
    one.send(parts)
    assert same(heard.get(timeout=DEADLINE_S), parts)


def test_the_end_of_the_other_is_heard(ends: tuple[Channel, Channel, queue.Queue[Any]]) -> None:
    one, _, heard = ends
    one.close()
    assert heard.get(timeout=DEADLINE_S) == "end"


def test_memory_is_used_again_once_the_taker_lets_go_of_it() -> None:
    one, other = map(Channel, socket.socketpair())
    heard: queue.Queue[Any] = queue.Queue()
    one.start("one", heard.put, lambda: None)
    other.start("other", heard.put, lambda: None)
    values = [torch.full((1 << 16,), turn) for turn in range(6)]
    for value in values:
        one.send(value)
        found = heard.get(timeout=DEADLINE_S)
        assert torch.equal(found, value)
        del found
        gc.collect()
        other.send("back")  # takes along which blocks are free
        assert heard.get(timeout=DEADLINE_S) == "back"
    assert len(one._own._all) == 1
    one.send([values[1], values[2]])
    kept = heard.get(timeout=DEADLINE_S)
    other.send("back")
    heard.get(timeout=DEADLINE_S)
    one.send(values[3])
    assert torch.equal(heard.get(timeout=DEADLINE_S), values[3])
    assert same(kept, [values[1], values[2]]), "memory that somebody has was written to"
    one.close()
    other.close()


# Fellows

SCHEDULE = build("1f1b", [1, 1], 2)
NAMES = ["bob (worker 0)", "bob (worker 1)"]


def fellows() -> tuple[Fellows, Fellows]:
    left, right = map(Channel, socket.socketpair())
    return Fellows(0, {1: left}, NAMES, SCHEDULE), Fellows(1, {0: right}, NAMES, SCHEDULE)


def test_a_value_goes_to_the_owner_of_its_stage() -> None:
    first, second = fellows()
    done = Done(Action(0, "F", 1))
    first.put(("F", 1, 1), Fixed(torch.arange(4).reshape(1, 4), 16))
    first.finish([done], 7, {1: Snapshot(1, {(0, 1, 2): 5})})
    assert second.wait([done])[0] == 7
    assert second.evidence_of([done]) == [{1: Snapshot(1, {(0, 1, 2): 5})}]
    assert torch.equal(second.take(("F", 1, 1)).data, torch.arange(4).reshape(1, 4))
    second.close()
    first.close()


def test_what_is_said_of_the_run_before_does_not_count() -> None:
    first, second = fellows()
    second.forget()  # goes ahead: the next run has begun there
    done, later = Done(Action(0, "F", 0)), Done(Action(0, "F", 1))
    first.finish([done], 3)
    first.forget()
    first.finish([later], 5)
    assert second.wait([later])[0] == 5
    assert not second.evidence_of([]) and done not in second._done
    second.close()
    first.close()


def test_a_failure_is_told_with_its_class_and_a_loss_with_a_name() -> None:
    first, second = fellows()
    told: queue.Queue[BaseException] = queue.Queue()
    second.watch(told.put)
    first.fail(PeerLost("carol went away"))
    with pytest.raises(PeerLost, match=r"^carol went away$"):
        second.hear()
    assert str(told.get(timeout=DEADLINE_S)) == "carol went away"

    first, second = fellows()
    first._channels[1]._sock.shutdown(socket.SHUT_RDWR)  # as when the process dies
    with pytest.raises(PeerLost, match=r"^bob \(worker 0\) went away: its connection ended without a goodbye$"):
        second.hear()
    with pytest.raises(PeerLost, match="went away"):
        second.wait([Done(Action(0, "F", 0))])


def test_a_goodbye_is_no_loss() -> None:
    first, second = fellows()
    first.close()
    reader = second._channels[0]._thread
    assert reader is not None
    reader.join(DEADLINE_S)
    assert not reader.is_alive() and second._failure is None
    second.close()


def test_an_unexpected_error_is_told_without_its_text() -> None:
    first, second = fellows()
    first.fail(ValueError("a value is 12345"))
    with pytest.raises(Exception, match=r"bob \(worker 0\): stopped by an unexpected ValueError") as raised:
        second.hear()
    assert "12345" not in str(raised.value)
