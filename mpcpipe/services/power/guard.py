"""Whoever changes a GPU's clocks goes through here: nothing is written before it can be undone.

    lock by UUID ── journal on disk ── watchdog ── first write ... ── restore ── journal removed ── lock released

The original comes back when the guard is closed, at the end of the process, after SIGKILL of it (the watchdog), or, if
all of that fails, by `mpcpipe power restore`. What cannot be controlled is observed; each reason is told once.
"""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mpcpipe.errors import PowerError
from mpcpipe.services.power.device import (
    KNOBS,
    DeviceError,
    PowerDevice,
    Reason,
    Sample,
    supported,
    values_of,
)
from mpcpipe.services.power.journal import Entry, Journal, Lock, new_entry, state_folder
from mpcpipe.services.power.setting import Setting
from mpcpipe.services.power.vendors import open_device

SETTLE_S = 0.6
"""What a change of clocks may take (a fifth of a second is common, and now and then it is more); earlier readings say
nothing about it."""

MOST_REASSERTIONS = 3
"""So often a lock that has gone is set again; then somebody else wants something else, and the guard gives way."""

Tell = Callable[[str], None]


class Guard:
    """Owns one device while it is open. `tell` gets sentences for the user, each once.

    `controls`: it may write. `setting`: what was asked for last and accepted, None before. `lost`: the device is gone.
    """

    def __init__(
        self,
        device: PowerDevice,
        tell: Tell,
        folder: Path | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.device, self._tell, self._now = device, tell, now
        self.can = device.capabilities()
        self.controls = False
        self.lost = False
        self.setting = Setting()
        self.refused: dict[str, str] = {}
        self.writes = 0
        self.drifts = 0
        self._said: set[str] = set()
        self._folder = folder
        self._journal: Journal | None = None
        self._lock: Lock | None = None
        self._entry: Entry | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._busy = threading.RLock()
        self._wrote_at_s: dict[str, float] = {}
        self._suspect: dict[str, int] = {}
        self._reasserted = 0
        self._open()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # opening

    def _open(self) -> None:
        if not self.can.knobs:
            for entry in self.can.cannot:
                if entry.what in KNOBS or entry.what == "control":
                    self.tell(entry.why)
            return
        if not self.device.outlives_process:
            self.controls = True
            return
        try:
            folder = state_folder() if self._folder is None else self._folder
            self._journal = Journal(self.can.uuid, folder)
            lock = Lock(self.can.uuid, folder)
            lock.acquire()
            self._lock = lock
            left = self._journal.read()
            if left is not None:
                restore_entry(self._journal, left, self.device)
                self.tell(f"{left.name}: an earlier owner (process {left.pid}) ended without restoring it; done now")
        except (PowerError, OSError) as error:
            self.tell(str(error))
            self._let_go()
            return
        self.controls = True
        atexit.register(self.close)

    def tell(self, sentence: str) -> None:
        """Once each."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._tell(sentence)

    # writing

    def apply(self, setting: Setting) -> bool:
        """Set the device's part of `setting`. True: all of it is in force. Knobs that it has refused for good are left
        out. Errors: `DeviceError` for clocks that the device does not have; nothing is written then."""
        with self._busy:
            if not self.controls:
                return False
            supported(setting, self.can)
            done = True
            for knob, value in values_of(setting).items():
                only = knob == "memory" and self.can.memory_clocks_mhz == (value,)
                if only or value == values_of(self.setting)[knob]:
                    continue
                if knob in self.refused or knob not in self.can.knobs:
                    self.tell(self.refused.get(knob) or self.can.why_not(knob) or f"{KNOBS[knob]} cannot be set")
                    done = False
                elif self._write(knob, value):
                    self.setting = _with(self.setting, knob, value)
                else:
                    done = False
                if not self.controls:
                    return False
            return done

    def _write(self, knob: str, value: float | None) -> bool:
        before = self._entry
        try:
            self._prepare(knob)
            self.device.set_knob(knob, value)
        except DeviceError as error:
            if error.lasting and error.reason is not Reason.LOST:  # refused: the device is as it was
                self._forget(before)
            self._failed(knob, error)
            return False
        except PowerError as error:  # the journal
            self.tell(str(error))
            self.controls = False
            return False
        self.writes += 1
        self._wrote_at_s[knob] = self._now()
        self._suspect[knob] = 0
        return True

    def _prepare(self, knob: str) -> None:
        """The journal says what is about to be written, and the watchdog lives, before anything is."""
        if self._journal is None or self._lock is None:
            return
        if self._entry is None:
            self._entry = new_entry(self.can.uuid, self.device.spec, self.can.name, self.device.original())
        self._entry = self._journal.touch(self._entry, knob)
        if self._watchdog is None or self._watchdog.poll() is not None:
            if self._watchdog is not None:
                self.tell(f"{self.can.name}: the watchdog that restores its clocks was ended; there is a new one")
                _close_pipe(self._watchdog)
            self._watchdog = start_watchdog(self._journal, self._entry, self._lock)

    def _forget(self, before: Entry | None) -> None:
        """A write was refused: what was noted of it need not be undone."""
        if self._journal is None or before == self._entry:
            return
        self._entry = before
        if before is None:
            self._journal.remove()
        else:
            self._journal.write(before)

    def _failed(self, knob: str, error: DeviceError) -> None:
        if error.reason is Reason.LOST:
            self.vanished(error)
            return
        if error.lasting:
            self.refused[knob] = str(error)
            if all(each in self.refused for each in self.can.knobs):
                self.tell(str(error))
                self.tell(f"{self.can.name}: nothing of it can be set; it is only observed")
                self.controls = False
                return
        self.tell(str(error))

    def vanished(self, error: DeviceError) -> None:
        """The device is gone: no more reading or writing; the rest of the program goes on."""
        if not self.lost:
            self.lost, self.controls = True, False
            self.tell(f"{error}; training goes on without the power service")

    # reading back

    def read(self) -> Sample | None:
        """A reading, compared with what was set; None: the device is gone, or could not be read this time."""
        with self._busy:
            if self.lost:
                return None
            try:
                sample = self.device.read()
            except DeviceError as error:
                if error.reason is Reason.LOST:
                    self.vanished(error)
                else:
                    self.tell(str(error))
                return None
            if self.controls:
                self._compare(sample)
            return sample

    def _compare(self, sample: Sample) -> None:
        """A clock above its lock, or another limit, twice in a row: somebody else was at it. Set it again, and say so.

        A clock below its lock is no drift: a GPU that is idle, hot or at its power limit takes less.
        """
        seen = {"sm": sample.sm_clock_mhz, "memory": sample.memory_clock_mhz, "limit": sample.limit_w}
        for knob, wanted in values_of(self.setting).items():
            at, wrote_at_s = seen[knob], self._wrote_at_s.get(knob)
            if wanted is None or at is None or wrote_at_s is None or self._now() - wrote_at_s < SETTLE_S:
                continue
            off = abs(at - wanted) > 1.0 if knob == "limit" else at > wanted + max(16.0, 0.02 * wanted)
            self._suspect[knob] = self._suspect.get(knob, 0) + 1 if off else 0
            if self._suspect[knob] >= 2:
                self._drifted(knob, wanted, at)

    def _drifted(self, knob: str, wanted: float, at: float) -> None:
        unit = "W" if knob == "limit" else "MHz"
        what = f"{self.can.name}: {KNOBS[knob]} was set to {wanted:g} {unit} and is {at:g} {unit}"
        self.drifts += 1
        self._reasserted += 1
        if self._reasserted > MOST_REASSERTIONS:
            self.tell(f"{what}, after {MOST_REASSERTIONS} attempts: another program sets it. It is only observed now")
            self.restore()
            self.controls = False
            return
        self.tell(f"{what}: somebody else changed it, or the driver was loaded anew; it is set again")
        self._write(knob, wanted)

    # restoring

    def restore(self) -> bool:
        """Everything back as it was. True: done, or nothing was changed. Otherwise the journal stays."""
        with self._busy:
            if self._entry is None:
                if not self.device.outlives_process and not self.lost:
                    self.device.restore(self.device.original())
                self.setting = Setting()
                return True
            assert self._journal is not None
            try:
                restore_entry(self._journal, self._entry, self.device)
            except PowerError as error:
                self.tell(
                    f"{self.can.name} could not be put back as it was: {error}. Its journal stays, "
                    f"{self._journal.path}; run `mpcpipe power restore`"
                )
                return False
            self._entry = None
            self.setting = Setting()
            return True

    def close(self) -> None:
        """Restore, end the watchdog, let go of the GPU. May be called twice."""
        with self._busy:
            if self._lock is None and not self.controls:
                return
            self.restore()
            self.controls = False
            self._let_go()

    def _let_go(self) -> None:
        if self._watchdog is not None:
            # Even if restoring has failed: a watchdog would fail as well, and the journal is for later.
            stop_watchdog(self._watchdog)
            self._watchdog = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        atexit.unregister(self.close)


def _with(setting: Setting, knob: str, value: float | None) -> Setting:
    if knob == "limit":
        return replace(setting, power_limit_w=value)
    clock = None if value is None else int(value)
    return replace(setting, sm_clock_mhz=clock) if knob == "sm" else replace(setting, memory_clock_mhz=clock)


def restore_entry(journal: Journal, entry: Entry, device: PowerDevice | None = None) -> None:
    """Put a device back as its journal says, and remove the journal. Errors: PowerError; the journal stays then."""
    own = device is None
    found = open_device(entry.spec) if device is None else device
    try:
        found.restore(entry.original, entry.touched)
    finally:
        if own:
            found.close()
    journal.remove()


def start_watchdog(journal: Journal, entry: Entry, lock: Lock) -> subprocess.Popen[bytes]:
    """A process of its own session, which signals to this one's group do not reach. It holds the lock, too."""
    assert lock.descriptor is not None
    words = [sys.executable, "-m", "mpcpipe.services.power.watchdog", str(journal.path.parent), entry.uuid]
    return subprocess.Popen(  # noqa: S603
        [*words, str(entry.pid), str(entry.pid_started)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=(lock.descriptor,),
        start_new_session=True,
    )


def stop_watchdog(watchdog: subprocess.Popen[bytes]) -> None:
    """Tell it that all is done, and wait for its end."""
    assert watchdog.stdin is not None
    with contextlib.suppress(OSError):  # it is gone
        watchdog.stdin.write(b"done\n")
        watchdog.stdin.flush()
    _close_pipe(watchdog)
    try:
        watchdog.wait(5)
    except subprocess.TimeoutExpired:
        watchdog.kill()
        watchdog.wait()


def _close_pipe(watchdog: subprocess.Popen[bytes]) -> None:
    assert watchdog.stdin is not None
    with contextlib.suppress(OSError):  # what was not written yet has no reader
        watchdog.stdin.close()
