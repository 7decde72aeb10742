"""What devices can do, as far as it decides about tiles. From data sheets, not measured here."""

from __future__ import annotations

from dataclasses import dataclass

# Issue slots of a lane that one multiply-add takes, by element. GCN multiplies 32 bits at a quarter of the rate: a
# product modulo 2^64 is v_mad_u64_u32, two v_mul_lo_u32 and v_add3_u32. NVIDIA's wide multiply is two slots, and
# integers have half of Hopper's lanes.
_GCN = {"u64": 13.0, "u32": 5.0, "f32": 1.0}
_AMPERE = {"u64": 4.0, "u32": 1.0, "f32": 1.0}
_HOPPER = {"u64": 8.0, "u32": 2.0, "f32": 1.0}


@dataclass(frozen=True)
class Machine:
    """One kind of device. `slots[element]` issue slots of a lane make one multiply-add."""

    name: str
    arch: str
    units: int
    lanes: int
    clock_ghz: float
    bandwidth_gbs: float
    lds_bytes: int
    slots: dict[str, float]
    launch_us: float = 4.0
    slab_cycles: float = 500.0  # memory's answer, which a block waits for once a slab if nothing else is there to do

    def macs_per_s(self, element: str) -> float:
        """Multiply-adds a second, all lanes busy."""
        return self.units * self.lanes * self.clock_ghz * 1e9 / self.slots[element]

    def least_us(self, element: str, macs: int, nbytes: int) -> tuple[float, bool]:
        """(microseconds that it takes at least, whether memory is what takes them): the roofline."""
        compute, memory = macs / self.macs_per_s(element) * 1e6, nbytes / (self.bandwidth_gbs * 1e3)
        return max(compute, memory), memory >= compute


MACHINES = {
    "mi50": Machine("Radeon Instinct MI50", "gfx906", 60, 64, 1.725, 1024, 65536, _GCN),
    "z100": Machine("Hygon DCU Z100", "gfx906", 64, 64, 1.5, 1024, 65536, _GCN),
    "a100": Machine("A100 SXM 40 GB", "sm_80", 108, 64, 1.41, 1555, 164 * 1024, _AMPERE),
    "h100": Machine("H100 SXM", "sm_90", 132, 128, 1.83, 3350, 228 * 1024, _HOPPER),
}
_BY_ARCH = {"gfx": "z100", "sm_7": "a100", "sm_8": "a100", "sm_9": "h100", "sm_1": "h100"}


def machine_like(arch: str, units: int | None = None) -> Machine:
    """The nearest machine above, with that many units. The model only sorts out what is not worth timing."""
    known = MACHINES[next((name for prefix, name in _BY_ARCH.items() if arch.startswith(prefix)), "a100")]
    return Machine(**{**vars(known), "arch": arch, "units": units or known.units})
