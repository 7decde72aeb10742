"""No key of a TLS connection protects more than TLS 1.3 allows it to: the connection ends before, and says why."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from link_parties import networks, pinned

from mpcpipe.errors import PeerLost
from mpcpipe.link import tls
from mpcpipe.link.base import Part
from mpcpipe.link.identity import Identity
from mpcpipe.link.network import Network

RECORD_ELEMENTS = (16 << 10) // 8


def test_a_spent_connection_ends_the_job_at_both_ends(
    identities: list[Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2**37 < tls.MOST_BYTES < 2**24.5 * 2**14
    values = torch.arange(3 * RECORD_ELEMENTS)

    def talk(network: Network) -> tuple[int, PeerLost]:
        mesh, peer = network.mesh(), 1 - network.party
        for turn in range(100):
            try:
                mesh.send(f"turn {turn}", {peer: [values]})
                received = mesh.receive(f"turn {turn}", {peer: [Part(torch.int64, values.numel())]})
                assert torch.equal(received[peer][0], values)
            except PeerLost as error:
                network.abort(error)
                return turn, error
        raise AssertionError("the connection was never spent")

    with networks(2, options=pinned(identities[:2])) as found:
        monkeypatch.setattr(tls, "MOST_BYTES", 10 * values.nbytes)  # greetings are in it, too
        with ThreadPoolExecutor(2) as pool:
            ends = list(pool.map(talk, found))
    for turn, error in ends:
        assert 8 <= turn <= 9
        assert "must not protect more" in str(error) and "--resume" in str(error)
