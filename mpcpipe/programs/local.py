"""All parties as threads of this process, for notebooks, experiments and programs of one's own.

    with mpcpipe.local(parties=3) as parties:
        async def average(party):
            salaries = [await party.share(mine[party.number], owner) for owner in range(3)]
            return await party.reveal(await party.divide(sum(salaries), 3))
        parties.run(average)

Every party runs the same coroutine with the real protocol over links in memory. That teaches and tests; it protects
nothing, since one process has all the shares. Parties on machines of their own are what `mpcpipe train --party` starts.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import torch

from mpcpipe.errors import UsageError
from mpcpipe.link.memory import MemoryNetwork
from mpcpipe.nn.fixed import Fixed, at_most, divided, product
from mpcpipe.nn.layers.activation import COMPARED_BITS
from mpcpipe.programs.secret import Public, Secret, aligned
from mpcpipe.protocol import rounds
from mpcpipe.protocol.base import Opening, Protocol
from mpcpipe.protocol.registry import protocol_named
from mpcpipe.random.keys import own_key
from mpcpipe.random.tape import Holders, PrgTape
from mpcpipe.ring.bilinear import MATMUL, MUL, Bilinear, Shape
from mpcpipe.ring.fixed import FixedPoint
from mpcpipe.ring.ring import Ring

T = TypeVar("T")


class Party:
    """One party in one run: what a program shares, computes and reveals with. number: from 0."""

    def __init__(self, protocol: Protocol, fixed: FixedPoint) -> None:
        self.protocol = protocol
        self.fixed = fixed

    @property
    def number(self) -> int:
        """Which party this is."""
        return self.protocol.party

    @property
    def parties(self) -> int:
        """How many there are."""
        return self.protocol.parties

    def __repr__(self) -> str:
        return f"Party({self.number} of {self.parties}, {self.protocol.name})"

    def at(self, name: str) -> Protocol:
        """The protocol in a scope of its own, for layers and whatever else takes one. A name is used once in a run."""
        return self.protocol.at(f"{self.protocol.scope}/{name}")

    def encode(self, value: Public, name: str = "a value") -> torch.Tensor:
        """Real numbers as ring elements. RangeError, naming `name`, for NaN and what the fixed point does not hold."""
        return self.fixed.encode(torch.as_tensor(value, dtype=torch.float64), name)

    def decode(self, value: torch.Tensor) -> torch.Tensor:
        """Ring elements as float64."""
        return self.fixed.decode(value)

    def public(self, value: Public) -> Secret:
        """What all parties know, as a `Secret` to compute with. Local."""
        share = self.protocol.public(self.encode(value, "a public value"))
        return Secret(Fixed(share, self.fixed.fraction_bits), self)

    async def share(self, value: Public | None, owner: int, shape: Shape = ()) -> Secret:
        """Secret-share what party `owner` gives as `value`; what others give is not looked at. 1 round.

        All say the shape, which is public. Security: nobody but the owner learns anything.
        """
        mine = None
        if self.number == owner:
            if value is None:
                raise ValueError(f"party {owner} owns what is to be shared, and must give it")
            mine = self.encode(value, f"what party {owner} shares")
            if tuple(mine.shape) != tuple(shape):
                raise ValueError(
                    f"party {owner} shares a tensor of shape {tuple(mine.shape)}; all expect {tuple(shape)}"
                )
        data = await self.protocol.share(mine, owner, tuple(shape))
        return Secret(Fixed(data, self.fixed.fraction_bits), self)

    async def reveal(self, x: Secret, to: int | None = None, why: str = "reveal") -> torch.Tensor | None:
        """Open x to party `to`, or to all: float64 at who learns it, else None. 1 round."""
        opened = await self.protocol.reveal(x.value.data, to, why)
        return None if opened is None else FixedPoint(self.protocol.ring, x.value.fraction_bits).decode(opened)

    async def mul(self, x: Secret, y: Secret) -> Secret:
        """x y, element by element. 3 rounds under replicated3."""
        return await self._product(MUL, *aligned(x, y))

    async def matmul(self, x: Secret, y: Secret) -> Secret:
        """x (m, k) times y (k, n). 3 rounds under replicated3."""
        if len(x.shape) != 2 or len(y.shape) != 2 or x.shape[1] != y.shape[0]:
            raise ValueError(f"a matrix product is of (m, k) and (k, n), not of {x.shape} and {y.shape}")
        return await self._product(MATMUL, x.value, y.value)

    async def divide(self, x: Secret, count: int) -> Secret:
        """x divided by a public whole number above 0. 2 rounds under replicated3."""
        if count < 1:
            raise ValueError(f"a secret is divided by a public whole number above 0, not by {count}")
        return Secret(await divided(self.protocol, x.value, count, self.fixed.fraction_bits), self)

    async def relu(self, x: Secret) -> Secret:
        """max(x, 0); exact for magnitudes that the comparisons hold. 9 rounds under replicated3."""
        bits = self.fixed.fraction_bits
        value = await at_most(self.protocol, x.value, bits + COMPARED_BITS, bits)
        positive = await self.protocol.nonnegative(value.data)
        chosen, _ = await self.protocol.select(positive, value.data)
        return Secret(Fixed(chosen, value.fraction_bits), self)

    async def gather(self, *operations: rounds.Operation[Any]) -> list[Any]:
        """Independent operations side by side: the rounds of the longest."""
        return await rounds.gather(*operations)

    async def _product(self, op: Bilinear, x: Fixed, y: Fixed) -> Secret:
        return Secret(await product(self.protocol, op, x, y, self.fixed.fraction_bits), self)


class Local:
    """Parties in this process. `run` runs a program at all of them; use it in a `with`, which forgets the keys."""

    def __init__(self, parties: int, protocol: str, fraction_bits: int, deadline_s: float) -> None:
        kind = protocol_named(protocol)
        if parties not in kind.party_counts:
            needs = " or ".join(map(str, kind.party_counts))
            raise UsageError(f"{protocol} is for {needs} parties, not {parties}")
        ring = Ring(64)
        if not 1 <= fraction_bits <= 30:
            raise UsageError(f"fraction_bits is {fraction_bits}; numbers of 64 bits take 1 to 30")
        self.deadline_s = deadline_s
        self._runs = 0
        compare_bits = fraction_bits + 16
        self._fixed = FixedPoint(ring, fraction_bits, 2.0 ** (compare_bits - 1 - fraction_bits))
        keys = _keys(parties)
        self._protocols = [
            kind(party=i, ring=ring, tape=PrgTape(keys[i]), compare_bits=compare_bits, parties=parties)
            for i in range(parties)
        ]
        self.rounds = 0
        """Rounds of the last run."""
        self.sent_bytes: list[int] = [0] * parties
        """What each party sent in the last run, payload only."""

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        self._protocols.clear()

    def __repr__(self) -> str:
        return f"Local({len(self._protocols)} parties, runs={self._runs})"

    @property
    def openings(self) -> Sequence[Opening]:
        """Everything that was revealed so far, to whom and why."""
        return tuple(self._protocols[0].openings) if self._protocols else ()

    def run(self, program: Callable[[Party], Coroutine[Any, Any, T]]) -> list[T]:
        """Run `program(party)` at every party, each in a thread; returns the results in order.

        The first failure at any party stops all and is raised here. Inside, await only what a `Party` offers.
        """
        if not self._protocols:
            raise UsageError("these parties are gone: their `with` has ended; open new ones with mpcpipe.local()")
        self._runs += 1
        count = len(self._protocols)
        network = MemoryNetwork(count, deadline_s=self.deadline_s)
        results: list[Any] = [None] * count
        failures: list[BaseException] = []

        def work(number: int) -> None:
            mesh = network.mesh(number)
            try:
                coroutine = program(Party(self._protocols[number].at(f"run {self._runs}"), self._fixed))
                if not isinstance(coroutine, Coroutine):
                    raise UsageError(
                        "a program is an `async def` that takes the party, or gives what one of those gives"
                    )
                results[number] = rounds.run(coroutine, mesh)
            except BaseException as error:
                failures.append(error)
                network.abort(error)
            finally:
                mesh.close()

        threads = [threading.Thread(target=work, args=(i,), name=f"party {i}", daemon=True) for i in range(count)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:  # Ctrl-C, in the main thread
            network.abort(error)
            raise
        if failures:
            raise failures[0]
        meshes = [network.mesh(number) for number in range(count)]
        self.rounds = max(mesh.clock for mesh in meshes)
        self.sent_bytes = [mesh.sent_payload_bytes for mesh in meshes]
        return results


def local(parties: int = 3, protocol: str = "replicated3", fraction_bits: int = 16, deadline_s: float = 60.0) -> Local:
    """`parties` parties as threads of this process, with fresh keys: `with mpcpipe.local() as parties: ...`.

    Numbers have `fraction_bits` bits after the point, and magnitudes below 2^15. deadline_s: for one message.
    """
    return Local(parties, protocol, fraction_bits, deadline_s)


def _keys(parties: int) -> list[dict[Holders, bytes]]:
    """For each party the keys that it holds: one for every set of parties that it is in."""
    everyone = range(parties)
    keys = {who: own_key() for size in everyone for who in itertools.combinations(everyone, size + 1)}
    return [{who: key for who, key in keys.items() if party in who} for party in everyone]
