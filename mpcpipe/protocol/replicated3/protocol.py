"""replicated3, put together."""

from __future__ import annotations

from mpcpipe.protocol.replicated3.compare import Compare
from mpcpipe.protocol.replicated3.convert import Convert
from mpcpipe.protocol.replicated3.cost import Replicated3Costs
from mpcpipe.protocol.replicated3.linear import Linear
from mpcpipe.protocol.replicated3.share import Sharing


class Replicated3(Sharing, Linear, Compare, Convert):
    """Three parties, replicated shares, any one of them may be curious (semi-honest); none may collude or deviate.

    A share is (2, *shape): party p holds x_p and x_{p+1} of x = x_0 + x_1 + x_2.
    Source: Araki et al., CCS 2016; ABY3, CCS 2018; docs/protocols.md for what is different here.
    """

    @property
    def costs(self) -> Replicated3Costs:
        """What each operation costs."""
        return Replicated3Costs(self.ring, self.compare_bits)
