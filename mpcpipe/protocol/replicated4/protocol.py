"""replicated4, put together."""

from __future__ import annotations

import copy
from typing import Any, Self

from mpcpipe.protocol.replicated4.compare import Compare
from mpcpipe.protocol.replicated4.convert import Convert
from mpcpipe.protocol.replicated4.cost import Replicated4Costs
from mpcpipe.protocol.replicated4.linear import Linear
from mpcpipe.protocol.replicated4.share import Sharing


class Replicated4(Sharing, Linear, Compare, Convert):
    """Four parties, replicated shares; any one of them may deviate in any way, and is found out; none may collude.

    A share is (3, *shape): party p holds x_{p+1}, x_{p+2}, x_{p+3} of x = x_0 + x_1 + x_2 + x_3.
    Source: Dalskov, Escudero and Keller, USENIX Security 2021; docs/protocols.md for what is different here.
    """

    @property
    def costs(self) -> Replicated4Costs:
        """What each operation costs."""
        return Replicated4Costs(self.ring, self.compare_bits)

    def lane(self, number: int) -> Self:
        """The same party as worker `number`, whose messages are recorded apart; see `evidence`."""
        view = copy.copy(self)
        view.lane_number = number
        return view

    def evidence(self) -> Any:
        """What this lane has recorded and learned."""
        return self.journal.evidence(self.lane_number)

    def learn(self, evidence: Any) -> None:
        """This lane goes on with values of which this is the evidence."""
        self.journal.learn(self.lane_number, evidence)
