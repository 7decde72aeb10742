"""The services by name. Others register a `Service` class through the entry point group `mpcpipe.services`."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from mpcpipe.errors import MpcpipeError, PowerError
from mpcpipe.job.schema import Job
from mpcpipe.services.base import Service, Services, Tell

GROUP = "mpcpipe.services"
SERVICES: dict[str, str] = {"power": "mpcpipe.services.power.service:PowerService"}
"""Name -> "module:Class"."""


def service_named(name: str) -> type[Service]:
    """The class of a service; a wrong name gets the list of right ones."""
    if name in SERVICES:
        module, _, attribute = SERVICES[name].partition(":")
        own: type[Service] = getattr(importlib.import_module(module), attribute)
        return own
    others = {point.name: point for point in entry_points(group=GROUP)}
    known = sorted({*SERVICES, *others})
    if name not in others:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise PowerError(f"services.use: there is no service {name!r}{hint} Known: {', '.join(known)}.")
    loaded = others[name].load()
    if not (isinstance(loaded, type) and issubclass(loaded, Service)):
        raise PowerError(f"services.use: {name!r} is {others[name].value}, which is no Service")
    return loaded


def _made(name: str, options: Mapping[str, Any], tell: Tell) -> Service:
    """Anybody's code, before the run: whatever it does wrong is one sentence."""
    kind = service_named(name)
    try:
        return kind(options, tell)
    except MpcpipeError:
        raise
    except Exception as error:
        raise PowerError(f"the service {name!r} cannot be made: {type(error).__name__}: {error}") from error


def services_of(job: Job, tell: Tell) -> Services:
    """What the job asks for: nothing, where it says nothing. Errors: PowerError for what cannot be had."""
    found: dict[str, Service] = {}
    if job.services.power.policy != "off":
        found["power"] = service_named("power")(dataclasses.asdict(job.services.power), tell)
    for name in job.services.use:
        options = job.services.options.get(name, {})
        if not isinstance(options, dict):
            raise PowerError(f"services.options.{name} is {options!r}; it must be a table of that service's options")
        if name in SERVICES:
            raise PowerError(f"services.use: {name!r} has a table of its own, [services.{name}]; set its keys there")
        found[name] = _made(name, options, tell)
    unused = set(job.services.options) - set(job.services.use)
    if unused:
        raise PowerError(f"services.options has {', '.join(sorted(unused))}, which services.use does not name")
    return Services(found, tell)
