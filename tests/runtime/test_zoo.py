"""Networks of the zoo train under every protocol and ring, pipelined as one after another. All: `tests.zoo_matrix`."""

from __future__ import annotations

import pytest

from mpcpipe.protocol.additive2 import Additive2
from mpcpipe.protocol.base import Protocol
from mpcpipe.protocol.replicated3 import Replicated3
from mpcpipe.protocol.replicated4 import Replicated4
from tests.zoo_matrix import trained

PROTOCOLS = (Replicated3, Additive2, Replicated4)


@pytest.mark.parametrize("ring_bits", [64, 32])
@pytest.mark.parametrize("kind", PROTOCOLS, ids=lambda kind: kind.name)
def test_a_network_of_the_zoo_pipelined_is_the_sequential_one(kind: type[Protocol], ring_bits: int) -> None:
    name = "digits_cnn" if ring_bits == 64 else "digits_mlp"
    sequential = trained(name, kind, ring_bits, pipelined=False)
    assert trained(name, kind, ring_bits, pipelined=True) == sequential
    assert trained(name, kind, ring_bits, pipelined=False, steps=1) != sequential, "the second step changes nothing"
