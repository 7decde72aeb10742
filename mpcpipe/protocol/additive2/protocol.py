"""additive2, put together."""

from __future__ import annotations

from mpcpipe.protocol.additive2.compare import Compare
from mpcpipe.protocol.additive2.convert import Convert
from mpcpipe.protocol.additive2.cost import Additive2Costs
from mpcpipe.protocol.additive2.linear import Linear
from mpcpipe.protocol.additive2.share import Sharing


class Additive2(Sharing, Linear, Compare, Convert):
    """Parties 0 and 1 compute on additive shares, party 2 deals; any one of them may be curious (semi-honest).

    Who colludes with the dealer learns everything. A share is (1, *shape): x_0 or x_1 of x = x_0 + x_1, and at the
    dealer a tensor without values.
    Source: Beaver, CRYPTO 1991; SecureML, S&P 2017; docs/protocols.md for what is different here.
    """

    @property
    def costs(self) -> Additive2Costs:
        """What each operation costs."""
        return Additive2Costs(self.ring, self.compare_bits)
