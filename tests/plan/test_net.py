"""Networks from text."""

from __future__ import annotations

import math

import pytest

from mpcpipe.errors import PlanError
from mpcpipe.plan.net import NETS, Net, parse


@pytest.mark.parametrize(
    ("text", "rtt_s", "rate_bytes_per_s"),
    [
        ("wan", 0.04, 12.5e6),
        ("lan", 0.0002, 125e6),
        ("none", 0.0, math.inf),
        ("rtt=80ms,rate=1Gbps", 0.08, 125e6),
        ("rate=500Mbit/s, rtt=200us", 0.0002, 62.5e6),
        ("rtt=1.5s", 1.5, math.inf),
        ("rate=8kbps", 0.0, 1000),
    ],
)
def test_networks(text: str, rtt_s: float, rate_bytes_per_s: float) -> None:
    net = parse(text)
    assert (net.rtt_s, net.rate_bytes_per_s) == (pytest.approx(rtt_s), pytest.approx(rate_bytes_per_s))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wam", "did you mean 'wan'"),
        ("delay=3ms", "has rtt, rate and hub, not 'delay'"),
        ("rtt=3", "rtt=3 is no rtt; write a number and one of us, ms, s"),
        ("rtt=3Gbps", "rtt=3Gbps is no rtt"),
        ("rtt=1.2.3ms", "is no rtt"),
        ("rate=-3Gbps", "is no rate"),
        ("rtt=1ms,rtt=2ms", "given twice"),
        ("rate=0Mbps", "positive rate"),
    ],
)
def test_what_is_no_network(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse(text)


@pytest.mark.parametrize("net", [net for net in NETS.values() if net.rtt_s] + [Net(0.08, 1e6)])
def test_text_of_a_network(net: Net) -> None:
    again = parse(str(net))
    assert (again.rtt_s, again.rate_bytes_per_s) == (pytest.approx(net.rtt_s), pytest.approx(net.rate_bytes_per_s))


def test_what_an_emulated_network_takes_of_the_cores() -> None:
    net = parse("lan,hub=1.5ns")
    assert (net.rtt_s, net.rate_bytes_per_s, net.hub_s_per_byte) == pytest.approx((0.0002, 125e6, 1.5e-9))
    assert str(net) == "rtt=0.2ms,rate=1000Mbit/s,hub=1.5ns" and parse(str(net)) == net
    assert parse("wan,rate=200Mbit/s").rate_bytes_per_s == 25e6
    with pytest.raises(PlanError, match="hub=3Gbps is no hub"):
        parse("lan,hub=3Gbps")


def test_text_of_no_limit() -> None:
    assert str(Net()) == "rtt=0ms,rate=none"
