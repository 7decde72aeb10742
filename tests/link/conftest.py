"""Certificates for the parties of a test file."""

import pathlib

import pytest
from link_parties import NAMES, new_identity

from mpcpipe.link.identity import Identity


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def identities(folder: pathlib.Path) -> list[Identity]:
    return [new_identity(folder, name) for name in NAMES]


@pytest.fixture(scope="module")
def mallory(folder: pathlib.Path) -> Identity:
    return new_identity(folder, "mallory")
