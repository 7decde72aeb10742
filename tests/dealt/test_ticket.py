"""A store is used once, by whom it is for, for the job that it was dealt for; whatever is wrong with it is named."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mpcpipe.dealt import ticket as tickets
from mpcpipe.dealt.ticket import TICKET, USED, Ticket, claim, look, write_new
from mpcpipe.errors import StoreError

KEY = bytes(range(32))
GIVEN = Ticket("ab" * 16, 1, "bob", {"train.epochs": "5"}, (3, 4), (100, 200))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_new(tmp_path / TICKET, GIVEN.pack(KEY))
    return tmp_path


def test_a_ticket_is_what_was_written_and_for_its_user_only(folder: Path) -> None:
    assert look(folder) == GIVEN
    assert (folder / TICKET).stat().st_mode & 0o777 == 0o600
    assert claim(folder, GIVEN) == KEY


def test_a_store_is_used_once_and_its_key_is_gone(folder: Path) -> None:
    claim(folder, GIVEN)
    assert KEY not in (folder / USED).read_bytes() and not (folder / TICKET).exists()
    for again in (lambda: look(folder), lambda: claim(folder, GIVEN)):
        with pytest.raises(StoreError, match="was used by another run"):
            again()


def test_a_ticket_put_back_after_its_use_is_no_ticket(folder: Path) -> None:
    kept = (folder / TICKET).read_bytes()
    claim(folder, GIVEN)
    write_new(folder / TICKET, kept)
    for again in (lambda: look(folder), lambda: claim(folder, GIVEN)):
        with pytest.raises(StoreError, match="was used by another run"):
            again()


@pytest.mark.parametrize("at", ["link", "unlink", "fsync", "_read", "_wipe"])
def test_who_is_killed_at_any_point_of_the_claim_has_used_it(folder: Path, at: str) -> None:
    """From the first change on, nobody else gets the key: SIGKILL right after each step, in a process of its own."""

    def die_after(step: Callable[..., object]) -> Callable[..., object]:
        def stepped(*arguments: object) -> object:
            step(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
            return None

        return stepped

    def victim() -> None:
        where = os if hasattr(os, at) else tickets
        setattr(where, at, die_after(getattr(where, at)))
        claim(folder, GIVEN)

    process = multiprocessing.get_context("fork").Process(target=victim)
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    with pytest.raises(StoreError, match="was used by another run"):
        claim(folder, GIVEN)


def test_of_many_at_once_one_gets_the_key(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, got = context.Barrier(4), context.Queue()

    def one() -> None:
        start.wait(20)
        try:
            got.put(claim(folder, GIVEN) == KEY)
        except StoreError:
            got.put(None)

    processes = [context.Process(target=one) for _ in range(4)]
    for process in processes:
        process.start()
    outcome = [got.get(timeout=20) for _ in processes]
    for process in processes:
        process.join(20)
    assert sorted(outcome, key=str) == [None, None, None, True]


@pytest.mark.parametrize("cut", [0, 1, 20, -1, -32, -64])
def test_a_ticket_cut_off_anywhere_is_named(folder: Path, cut: int) -> None:
    path = folder / TICKET
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(StoreError, match="is damaged"):
        look(folder)


def test_every_byte_of_a_ticket_counts(folder: Path) -> None:
    path, whole = folder / TICKET, (folder / TICKET).read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(StoreError, match=r"damaged|of version"):
            look(folder)


def test_others_must_not_be_able_to_read_it(folder: Path) -> None:
    (folder / TICKET).chmod(0o644)
    with pytest.raises(StoreError, match="others than its owner may read"):
        look(folder)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no dealer's store"):
        look(tmp_path / "nothing")


def test_a_store_that_was_exchanged_after_the_first_look_is_not_used(folder: Path) -> None:
    with pytest.raises(StoreError, match="was exchanged"):
        claim(folder, replace(GIVEN, store="ef" * 16))
