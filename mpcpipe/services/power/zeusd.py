"""Control without root: Zeus's daemon does the writes, over HTTP on its unix socket. Readings of clocks come from NVML.

The daemon (https://ml.energy/zeus/zeusd) runs as root and lets a group of users set clocks and limits. GPUs are
numbered as NVML numbers them. Where NVML cannot be read, only what the daemon tells is known: power, energy, the limit.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from mpcpipe.errors import PowerError
from mpcpipe.services.power.device import (
    Cannot,
    Capabilities,
    DeviceError,
    Original,
    PowerDevice,
    Reason,
    Sample,
)
from mpcpipe.services.power.nvml import all_nvidia

SOCKET = "/var/run/zeusd.sock"
DEADLINE_S = 5.0


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("zeusd", timeout=DEADLINE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(DEADLINE_S)
        self.sock.connect(self._path)


def socket_path() -> str:
    """ZEUSD_SOCK_PATH, as Zeus has it, or the daemon's default."""
    return os.environ.get("ZEUSD_SOCK_PATH") or SOCKET


class Zeusd(PowerDevice):
    """GPU `index` behind the daemon at `path`. `reader`: the same GPU by NVML, if it can be read."""

    def __init__(self, index: int, path: str, reader: PowerDevice | None) -> None:
        self.index, self._path, self._reader = index, path, reader
        self.spec = f"zeusd:{index if reader is None else reader.capabilities().uuid}"
        self._name = f"GPU {index} of zeusd"
        self._can: Capabilities | None = None

    def _ask(self, method: str, route: str, **query: Any) -> Any:
        words = {"gpu_ids": str(self.index), **query}
        connection = _Connection(self._path)
        try:
            connection.request(method, f"/gpu/{route}?{urlencode(words)}")
            answer = connection.getresponse()
            body = answer.read()
        except FileNotFoundError as error:
            raise DeviceError(
                f"there is no zeusd at {self._path}: start it (`sudo zeusd serve`), or set ZEUSD_SOCK_PATH", Reason.LOST
            ) from error
        except PermissionError as error:
            raise DeviceError(
                f"this user may not talk to zeusd at {self._path}: its --socket-permissions or its group say who may",
                Reason.PERMISSION,
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise DeviceError(f"zeusd at {self._path} does not answer: {error}", Reason.BUSY) from error
        finally:
            connection.close()
        if answer.status != 200:
            said = body.decode(errors="replace")[:200]
            refused = f"{self._name}: {route} was refused ({answer.status}): {said}"
            raise DeviceError(refused, _reason(answer.status, said))
        return json.loads(body) if body else None

    def _value(self, route: str, *names: str) -> tuple[float, ...] | None:
        """Of the answer for this GPU, numbers by name; None: it is not to be had."""
        try:
            answer = self._ask("GET", route)
            own = answer[str(self.index)]
            return tuple(float(own[name]) for name in names)
        except DeviceError as error:
            if error.reason is Reason.LOST:
                raise
            return None
        except (KeyError, TypeError, ValueError):
            return None

    def capabilities(self) -> Capabilities:
        """Clocks as NVML lists them; without NVML they are not known, and only the limit is set."""
        if self._can is not None:
            return self._can
        limits = self._value("get_power_limit_constraints", "min_power_limit_mw", "max_power_limit_mw")
        counts = self._value("get_cumulative_energy", "energy_mj") is not None
        if self._reader is not None:
            can = self._reader.capabilities()
            self._name = can.name
            self._can = replace(can, energy_counter=can.energy_counter or counts)
            return self._can
        why = f"{self._name}: without NVML its clocks are not known and not set; pip install 'mpcpipe[nvidia]'"
        cannot = [Cannot("sm", why), Cannot("memory", why)]
        if limits is None:
            cannot.append(Cannot("limit", f"{self._name}: zeusd does not tell its power limits, so none is set"))
        if not counts:
            cannot.append(Cannot("energy", f"{self._name}: zeusd tells no energy; it is summed up from its power"))
        self._can = Capabilities(
            f"zeusd-{self.index}",
            self._name,
            limit_w=None if limits is None else (limits[0] / 1000, limits[1] / 1000),
            knobs=frozenset(() if limits is None else ("limit",)),
            energy_counter=counts,
            cannot=tuple(cannot),
        )
        return self._can

    def read(self) -> Sample:
        """By NVML where it can be read, else by the daemon."""
        if self._reader is not None:
            return self._reader.read()
        at_s = time.perf_counter()
        try:
            power_mw = self._ask("GET", "get_power")["power_mw"][str(self.index)]
        except DeviceError as error:
            if error.reason is Reason.LOST:
                raise
            power_mw = None
        except (KeyError, TypeError):
            power_mw = None
        energy_mj = self._value("get_cumulative_energy", "energy_mj")
        limit_mw = self._value("get_power_limit", "power_limit_mw")
        return Sample(
            at_s,
            None if power_mw is None else float(power_mw) / 1000,
            None if energy_mj is None else energy_mj[0] / 1000,
            limit_w=None if limit_mw is None else limit_mw[0] / 1000,
            power_average_s=0.0,
        )

    def original(self) -> Original:
        """The limit."""
        if self._reader is not None:
            return self._reader.original()
        limit_mw = self._value("get_power_limit", "power_limit_mw")
        return Original(None if limit_mw is None else limit_mw[0] / 1000)

    def set_knob(self, knob: str, value: float | None) -> None:
        """Waits until the daemon has done it."""
        done = {"block": "true"}
        if knob == "limit":
            if value is None:
                value = self.capabilities().default_limit_w
            if value is None:
                raise DeviceError(f"{self._name}: its own power limit is not known", Reason.UNSUPPORTED)
            self._ask("POST", "set_power_limit", power_limit_mw=round(value * 1000), **done)
            return
        name = "gpu" if knob == "sm" else "mem"
        if value is None:
            self._ask("POST", f"reset_{name}_locked_clocks", **done)
        else:
            clocks = {"min_clock_mhz": round(value), "max_clock_mhz": round(value)}
            self._ask("POST", f"set_{name}_locked_clocks", **clocks, **done)

    def close(self) -> None:
        """The reader, too."""
        if self._reader is not None:
            self._reader.close()


def _reason(status: int, said: str) -> Reason:
    if status in (401, 403) or "ermission" in said:
        return Reason.PERMISSION
    if "upported" in said:
        return Reason.UNSUPPORTED
    return Reason.ARGUMENT if status == 400 else Reason.MISSING if status == 404 else Reason.FAULT


def open_zeusd(which: str) -> PowerDevice:
    """A GPU by its number, or by its UUID where NVML can be read; without one GPU 0. Errors: PowerError."""
    path = socket_path()
    if not Path(path).exists():
        raise PowerError(f"there is no zeusd at {path}: start it (`sudo zeusd serve`), or set ZEUSD_SOCK_PATH")
    try:
        readers = all_nvidia()
    except PowerError:  # no NVML here: what the daemon tells has to do
        readers = []
    uuids = [reader.capabilities().uuid for reader in readers]
    if which in uuids:
        return Zeusd(uuids.index(which), path, readers[uuids.index(which)])
    if which and not which.isdigit():
        there = f"; NVML shows {', '.join(uuids)}" if uuids else ""
        raise PowerError(f'zeusd has no GPU "{which}": write zeusd:0 or zeusd:UUID{there}')
    index = int(which or 0)
    if readers and index >= len(readers):
        raise PowerError(f"there is no GPU {index}: NVML shows {len(readers)}")
    return Zeusd(index, path, readers[index] if readers else None)
