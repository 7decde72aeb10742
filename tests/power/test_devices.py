"""Each vendor's device: what it can do, what it reads, what it says where it cannot. NVML through the stand-in."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.power import hygon
from mpcpipe.services.power.amd import Amd, all_amd, open_amd
from mpcpipe.services.power.device import Capabilities, DeviceError, Original, Reason
from mpcpipe.services.power.guard import Guard
from mpcpipe.services.power.nvml import all_nvidia, open_nvidia
from mpcpipe.services.power.service import card_of
from mpcpipe.services.power.setting import Setting
from mpcpipe.services.power.simulated import card_power_w
from mpcpipe.services.power.vendors import open_device
from mpcpipe.services.power.zeusd import open_zeusd
from tests.power.standin.nvml import UUID, StandIn

RECORDED = Path(__file__).parent / "recorded"


# NVML


def test_nvml_tells_clocks_limits_and_readings(nvml: StandIn) -> None:
    device = open_nvidia(UUID)
    can = device.capabilities()
    assert can.sm_clocks_mhz == tuple(range(210, 2101, 15))
    assert can.memory_clocks_mhz == (405, 810, 5001, 9501)
    assert (can.limit_w, can.default_limit_w) == ((100.0, 350.0), 350.0)
    assert can.knobs == {"sm", "memory", "limit"} and can.energy_counter and not can.simulated
    assert can.cannot == ()
    sample = device.read()
    assert (sample.power_w, sample.power_average_s) == (350.0, 0.0)
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz, sample.temperature_c) == (1950, 9501, 50)
    assert sample.limited_by == ()
    nvml.gpu.events = 0x1 | 0x4 | 0x20
    assert device.read().limited_by == ("its power limit", "heat, by the driver")


def test_a_card_with_one_memory_clock_has_no_such_knob(nvml: StandIn) -> None:
    can = all_nvidia()[1].capabilities()
    assert can.knobs == {"sm", "limit"}
    assert can.why_not("memory") == "Stand-in GPU: the memory clock: there is one, so there is nothing to set"


def test_without_the_instantaneous_field_the_average_is_read(nvml: StandIn) -> None:
    nvml.gpu.instant_power = 0
    sample = open_nvidia(UUID).read()
    assert (sample.power_w, sample.power_average_s) == (350.0, None)


def test_each_thing_that_cannot_be_done_has_its_sentence(nvml: StandIn) -> None:
    nvml.fail("nvmlDeviceGetSupportedMemoryClocks", 3)
    nvml.fail("nvmlDeviceGetPowerManagementLimitConstraints", 3)
    nvml.fail("nvmlDeviceGetTotalEnergyConsumption", 3)
    can = open_nvidia(UUID).capabilities()
    assert can.knobs == set()
    for what in ("sm", "memory", "limit", "energy"):
        assert can.why_not(what)
    assert open_nvidia(UUID).read().energy_j is None


@pytest.mark.parametrize("mode", [2, 3, 4])
def test_a_virtual_gpu_is_observed_only(nvml: StandIn, mode: int) -> None:
    nvml.gpu.virtualization = mode
    can = open_nvidia(UUID).capabilities()
    assert can.knobs == set() and "virtual GPU" in (can.why_not("control") or "")


def test_mig_off_and_unsupported_are_no_reason(nvml: StandIn) -> None:
    for mode in (0, -1):
        nvml.gpu.mig = mode
        assert open_nvidia(UUID).capabilities().knobs


def test_which_gpu(nvml: StandIn) -> None:
    with pytest.raises(PowerError, match=r"stands for the only NVIDIA GPU, but there are 2: nvidia:GPU-0000"):
        open_device("nvidia")
    with pytest.raises(PowerError, match=r"there is no NVIDIA GPU 'GPU-x'"):
        open_device("nvidia:GPU-x")
    nvml.state.gpus = 1
    assert open_device("nvidia").spec == f"nvidia:{UUID}"


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [("nvmlInitWithFlags", 9, "driver is not loaded"), ("nvmlInitWithFlags", 18, "of different versions")],
)
def test_no_driver(nvml: StandIn, function: str, code: int, words: str) -> None:
    open_nvidia(UUID)
    nvml.fail(function, code)
    with pytest.raises(PowerError, match=words):
        open_device("nvidia")


def test_a_package_that_hides_nvidia_ml_py_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=lambda: None))
    with pytest.raises(PowerError, match="another package hides nvidia-ml-py"):
        open_device("nvidia")


@pytest.mark.parametrize(("kind", "module"), [("nvidia", "pynvml"), ("amd", "amdsmi")])
def test_a_missing_package_says_how_to_install_it(kind: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PowerError, match=rf"pip install 'mpcpipe\[{kind}\]'"):
        open_device(kind)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nvidea", "did you mean 'nvidia'"),
        ("rtx3080ti", "did you mean 'simulated:rtx3080ti'"),
        ("simulated:a100-40", "did you mean 'a100-40gb'"),
        ("simulated", "there is no card ''"),
        ("hygon", "no program hy-smi"),
    ],
)
def test_a_device_that_there_is_not(spec: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PowerError, match=words):
        open_device(spec)


# hy-smi


class HySmi:
    """The program, as recorded; `obeys`: whether a level that is set is in force."""

    def __init__(self, obeys: bool = True) -> None:
        self.obeys, self.level, self.perf, self.calls = obeys, 10, "auto", list[str]()

    def __call__(self, words: Sequence[str]) -> str:
        self.calls.append(" ".join(words))
        if "--showclkfrq" in words:
            text = (RECORDED / "hy-smi-showclkfrq.txt").read_text().replace(": 1550Mhz *", ": 1550Mhz")
            lines = [
                f"{line} *" if line.startswith(f"HCU[1]          : {self.level}: ") and "800Mhz *" not in line else line
                for line in text.splitlines()
            ]
            return "\n".join(lines)
        if "--setsclk" in words and self.obeys:
            self.level, self.perf = int(words[words.index("--setsclk") + 1]), "manual"
        if "--setperflevel" in words:
            self.level, self.perf = 10, "auto"
        text = (RECORDED / "hy-smi.txt").read_text()
        return text.replace("manual", self.perf.ljust(6))


def test_hy_smi_as_recorded() -> None:
    rows = hygon.overview((RECORDED / "hy-smi.txt").read_text())
    assert rows[0]["AvgPwr"] == "259.0W" and rows[1]["Perf"] == "manual"
    newer = hygon.overview((RECORDED / "hy-smi-newer.txt").read_text())
    assert newer[0]["PwrCap"] == "800.0W" and newer[0]["Mode"] == "Normal"
    assert hygon.number_of(newer[0]["AvgPwr"]) == 157.0
    assert hygon.number_of(newer[1]["AvgPwr"]) is None
    clocks, current = hygon.levels((RECORDED / "hy-smi-showclkfrq.txt").read_text(), "sclk", 1)
    assert len(clocks) == 11 and (clocks[6], current) == (1200, 10)
    assert hygon.levels((RECORDED / "hy-smi-showclkfrq.txt").read_text(), "mclk", 1) == ({0: 800}, 0)
    assert hygon.levels((RECORDED / "hy-smi-showclkfrq.txt").read_text(), "sclk", 0) == ({}, None)
    assert hygon.overview("Driver not initialized (hydcu not found in modules)\n") == {}


def test_a_dcu_is_set_by_level_and_given_back(tmp_path: Path) -> None:
    smi = HySmi()
    device = hygon.open_hygon("1", smi)
    can = device.capabilities()
    assert can.sm_clocks_mhz[0] == 300 and can.sm_clocks_mhz[-1] == 1550 and can.knobs == {"sm"}
    assert can.why_not("energy") and can.why_not("memory") and can.why_not("limit")
    sample = device.read()
    assert (sample.power_w, sample.sm_clock_mhz, sample.temperature_c, sample.energy_j) == (104.0, 1550.0, 41.0, None)
    with Guard(device, print, folder=tmp_path) as guard:
        assert guard.apply(Setting(sm_clock_mhz=1200))
        assert smi.level == 6
    assert smi.level == 10 and "--setperflevel auto -d 1" in smi.calls


def test_a_level_that_was_locked_before_comes_back() -> None:
    smi = HySmi()
    smi.level, smi.perf = 6, "manual"
    device = hygon.open_hygon("1", smi)
    original = device.original()
    assert original == Original(None, 1200, 800, (("Perf", "manual"),))
    device.set_knob("sm", 900)
    device.restore(original, ["sm"])
    assert smi.level == 6


def test_a_dcu_that_ignores_a_write_is_found_out() -> None:
    device = hygon.open_hygon("1", HySmi(obeys=False))
    with pytest.raises(DeviceError, match="ended well, but level 10 is in force") as caught:
        device.set_knob("sm", 1200)
    assert caught.value.reason is Reason.PERMISSION
    with pytest.raises(DeviceError, match="has no level of 1234 MHz"):
        device.set_knob("sm", 1234)


def test_a_dcu_that_is_not_there() -> None:
    with pytest.raises(PowerError, match=r'no DCU "7"; write hygon:N with one of: 0, 1'):
        hygon.open_hygon("7", HySmi())
    with pytest.raises(DeviceError, match="shows no DCU 5") as caught:
        hygon.Hygon(5, HySmi()).read()
    assert caught.value.reason is Reason.LOST


# AMD SMI


class FakeAmdSmi:
    """amdsmi with one GPU, as its documentation has it."""

    class AmdSmiException(Exception):
        def __init__(self, code: int) -> None:
            self.code = code

        def get_error_code(self) -> int:
            return self.code

    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="now")
    AmdSmiDevPerfLevel = SimpleNamespace(AUTO="auto")

    def __init__(self) -> None:
        self.range: dict[str, tuple[int, int]] = {}
        self.cap_uw, self.code, self.ignores = 560_000_000, 0, False
        self.power: Any = 310

    def amdsmi_init(self) -> None: ...

    def amdsmi_shut_down(self) -> None: ...

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["handle"]

    def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
        return "uuid-1"

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, str]:
        return {"market_name": "AMD Instinct MI210"}

    def amdsmi_get_clk_freq(self, handle: str, kind: str) -> dict[str, Any]:
        clocks = {"gfx": [500, 800, 1700], "mem": [400, 700, 1200, 1600]}[kind]
        return {"num_supported": len(clocks), "current": 0, "frequency": [c * 1_000_000 for c in clocks]}

    def amdsmi_get_power_cap_info(self, handle: str, sensor: int) -> dict[str, int]:
        return {
            "power_cap": self.cap_uw,
            "default_power_cap": 560_000_000,
            "min_power_cap": 0,
            "max_power_cap": 600_000_000,
        }

    def amdsmi_get_power_info(self, handle: str) -> dict[str, Any]:
        return {"current_socket_power": "N/A", "average_socket_power": self.power}

    def amdsmi_get_energy_count(self, handle: str) -> dict[str, Any]:
        return {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1}

    def amdsmi_get_clock_info(self, handle: str, kind: str) -> dict[str, int]:
        return {"clk": self.range.get(kind, (1700, 1700))[1]}

    def amdsmi_get_temp_metric(self, handle: str, kind: str, metric: str) -> int:
        return 47

    def amdsmi_get_gpu_perf_level(self, handle: str) -> str:
        return "AMDSMI_DEV_PERF_LEVEL_AUTO"

    def amdsmi_set_gpu_clk_range(self, handle: str, low: int, high: int, kind: str) -> None:
        if self.code:
            raise self.AmdSmiException(self.code)
        self.range[kind] = (low, high)

    def amdsmi_set_gpu_perf_level(self, handle: str, level: str) -> None:
        assert level == "auto"
        self.range.clear()

    def amdsmi_set_power_cap(self, handle: str, sensor: int, cap_uw: int) -> None:
        if not self.ignores:
            self.cap_uw = cap_uw


@pytest.fixture
def amdsmi(monkeypatch: pytest.MonkeyPatch) -> FakeAmdSmi:
    fake = FakeAmdSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    return fake


def test_amd_smi(amdsmi: FakeAmdSmi, tmp_path: Path) -> None:
    device = open_amd("")
    can = device.capabilities()
    assert (can.sm_clocks_mhz, can.memory_clocks_mhz) == ((500, 800, 1700), (400, 700, 1200, 1600))
    assert (can.limit_w, can.default_limit_w, can.energy_counter) == ((0.0, 600.0), 560.0, True)
    sample = device.read()
    assert (sample.power_w, sample.energy_j, sample.temperature_c) == (310.0, pytest.approx(15.3), 47.0)
    with Guard(device, print, folder=tmp_path) as guard:
        assert guard.apply(Setting(sm_clock_mhz=800, power_limit_w=300.0))
        assert amdsmi.range == {"gfx": (800, 800)} and amdsmi.cap_uw == 300_000_000
    assert amdsmi.range == {} and amdsmi.cap_uw == 560_000_000


def test_amd_errors_are_sentences(amdsmi: FakeAmdSmi) -> None:
    amdsmi.code, amdsmi.ignores = 10, True
    device = all_amd()[0]
    with pytest.raises(DeviceError, match="only the administrator may do it"):
        device.set_knob("sm", 800)
    with pytest.raises(DeviceError, match="took 200 W, but 560 W is in force"):
        device.set_knob("limit", 200.0)
    with pytest.raises(PowerError, match="is not one GPU; there are: amd:uuid-1"):
        open_amd("uuid-2")


def test_a_second_die_without_power_is_observed_only(amdsmi: FakeAmdSmi) -> None:
    amdsmi.power = "N/A"
    device = Amd(amdsmi, "handle")
    assert device.capabilities().knobs == set()
    assert device.read().power_w is None
    assert "second die" in (device.capabilities().why_not("control") or "")


# zeusd


class Daemon:
    """zeusd on a unix socket, with what it was asked to set. status: of every write."""

    def __init__(self, path: Path) -> None:
        self.set: dict[str, dict[str, str]] = {}
        self.status, self.body = 200, ""
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                answers: dict[str, Any] = {
                    "/gpu/get_power": {"timestamp_ms": 1, "power_mw": {"0": 250_000}},
                    "/gpu/get_cumulative_energy": {"0": {"energy_mj": 5_000}},
                    "/gpu/get_power_limit": {"0": {"power_limit_mw": 300_000}},
                    "/gpu/get_power_limit_constraints": {
                        "0": {"min_power_limit_mw": 100_000, "max_power_limit_mw": 350_000}
                    },
                }
                self._answer(200, json.dumps(answers[urlparse(self.path).path]))

            def do_POST(self) -> None:
                url = urlparse(self.path)
                query = {key: value[0] for key, value in parse_qs(url.query).items()}
                assert query.pop("block") == "true"
                daemon.set[url.path.removeprefix("/gpu/")] = query
                self._answer(daemon.status, daemon.body)

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

        self.server = ThreadingUnixStreamServer(str(path), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def zeusd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    path = tmp_path / "zeusd.sock"
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    daemon = Daemon(path)
    yield daemon
    daemon.close()


def test_zeusd_writes_and_nvml_reads(zeusd: Daemon, nvml: StandIn) -> None:
    device = open_zeusd("")
    assert device.spec == f"zeusd:{UUID}"
    with Guard(device, print) as guard:
        assert guard.apply(Setting(sm_clock_mhz=1200, memory_clock_mhz=5001, power_limit_w=200.0))
        assert zeusd.set == {
            "set_mem_locked_clocks": {"gpu_ids": "0", "min_clock_mhz": "5001", "max_clock_mhz": "5001"},
            "set_power_limit": {"gpu_ids": "0", "power_limit_mw": "200000"},
            "set_gpu_locked_clocks": {"gpu_ids": "0", "min_clock_mhz": "1200", "max_clock_mhz": "1200"},
        }
        sample = guard.read()
        assert sample is not None and sample.sm_clock_mhz == 1950
        zeusd.set.clear()
    assert set(zeusd.set) == {"reset_mem_locked_clocks", "reset_gpu_locked_clocks", "set_power_limit"}
    assert nvml.gpu.writes == 0
    assert open_device(device.spec).spec == device.spec, "as a journal names it"


def test_zeusd_without_nvml_sets_the_limit_only(zeusd: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    device = open_zeusd("0")
    can = device.capabilities()
    assert can.knobs == {"limit"} and can.limit_w == (100.0, 350.0) and can.energy_counter
    sample = device.read()
    assert (sample.power_w, sample.energy_j, sample.limit_w, sample.sm_clock_mhz) == (250.0, 5.0, 300.0, None)
    with Guard(device, print) as guard:
        assert guard.apply(Setting(power_limit_w=200.0))
    assert zeusd.set["set_power_limit"]["power_limit_mw"] == "300000", "the limit that was there before"


def test_what_zeusd_refuses_is_told(zeusd: Daemon, nvml: StandIn) -> None:
    zeusd.status, zeusd.body = 403, '{"error": "permission denied"}'
    with pytest.raises(DeviceError, match=r"set_power_limit was refused \(403\)") as caught:
        open_zeusd("").set_knob("limit", 200.0)
    assert caught.value.reason is Reason.PERMISSION
    with pytest.raises(PowerError, match="there is no GPU 5"):
        open_zeusd("5")


def test_no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "none"))
    with pytest.raises(PowerError, match=r"there is no zeusd at .* ZEUSD_SOCK_PATH"):
        open_zeusd("")


def test_a_card_by_the_name_of_a_device() -> None:
    assert card_of(Capabilities("u", "NVIDIA A100-PCIE-40GB")).name.startswith("a100")
    assert card_of(Capabilities("u", "NVIDIA GeForce RTX 3080 Ti")).name == "rtx3080ti"
    unknown = card_of(Capabilities("u", "Some GPU", (500, 1000, 1500), (800,), (100.0, 400.0)))
    assert unknown.name == "unknown" and unknown.assumed == ("everything",)
    assert 200 < card_power_w(unknown, 800, 1500, 1.0) <= 1.1 * 400


def test_nothing_is_imported_before_it_is_used() -> None:
    """`import mpcpipe.services.power...` needs none of the vendors' packages."""
    names = {"pynvml", "amdsmi", "torch"}
    code = (
        "import sys, mpcpipe.services.power.vendors, mpcpipe.services.power.guard, mpcpipe.services.power.watchdog, "
        f"mpcpipe.services.power.nvml, mpcpipe.services.power.amd; print(sorted({names!r} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
