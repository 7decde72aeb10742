"""Other packages' services and policies: one entry point group for both, and a sentence for whatever is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpcpipe.errors import PowerError
from mpcpipe.services.registry import GROUP, policy_named, service_named

CODE = """
from mpcpipe.services.base import Service
from mpcpipe.services.power.policies.base import Policy

class Listens(Service):
    def begin(self, run): pass
    def step(self, done): pass

class Decides(Policy):
    name = "decides"
    def decide(self, observation, limits): return observation.setting

def a_function(): pass
"""


def package(folder: Path, name: str, code: str = CODE, **points: str) -> None:
    """An installed package: a module and its entry points."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    facts = folder / f"{module}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key.replace('_', '-')} = {module}:{value}" for key, value in points.items()]
    (facts / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_one_group_holds_services_and_policies(site: Path) -> None:
    package(site, "plugin-one", listens="Listens", decides="Decides")
    assert service_named("listens").__name__ == "Listens"
    assert policy_named("decides").name == "decides"
    with pytest.raises(PowerError, match=r"no policy 'decide'; did you mean 'decides'\?"):
        policy_named("decide")


def test_one_that_is_the_other_kind_is_told_where_it_belongs(site: Path) -> None:
    package(site, "plugin-two", listens="Listens", decides="Decides")
    with pytest.raises(PowerError, match=r"'listens' is a service, not a policy; .*services.use = \['listens'\]"):
        policy_named("listens")
    with pytest.raises(PowerError, match=r"'decides' is a policy, not a service; .*services.power.policy = 'decides'"):
        service_named("decides")
    with pytest.raises(PowerError, match="'perseus' is a policy, not a service"):
        service_named("perseus")


@pytest.mark.parametrize("value", ["a_function", "GROUP"])
def test_one_that_is_neither(site: Path, value: str) -> None:
    package(site, "plugin-three", CODE + "\nGROUP = dict\n", odd=value)
    with pytest.raises(PowerError, match=f"'odd' of the package 'plugin-three' .*{value}.* is neither a service nor a"):
        policy_named("odd")


def test_one_that_cannot_be_imported(site: Path) -> None:
    package(site, "plugin-four", "1 / 0\n", broken="Listens")
    package(site, "plugin-five", absent="NotThere")
    with pytest.raises(PowerError, match=r"'broken' of the package 'plugin-four' .* cannot be imported: ZeroDivisionE"):
        service_named("broken")
    with pytest.raises(PowerError, match=r"cannot be imported: AttributeError: .*NotThere"):
        policy_named("absent")


def test_a_name_that_is_taken(site: Path) -> None:
    """By mpcpipe, as a service or as a policy, or by two packages."""
    package(site, "plugin-six", pctodl="Decides", power="Listens", twice="Decides")
    package(site, "plugin-seven", twice="Decides")
    with pytest.raises(PowerError, match=r"'plugin-six' registers a 'pctodl' .* a name of mpcpipe's own; rename it"):
        policy_named("pctodl")
    with pytest.raises(PowerError, match="'plugin-six' registers a 'power'"):
        service_named("power")
    with pytest.raises(PowerError, match="'plugin-seven' and the package 'plugin-six' both register a 'twice'"):
        policy_named("twice")
    assert policy_named("perseus").name == "perseus"
