"""One party's network while a job runs: its workers' meshes, the tape's keys, and the control connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mpcpipe.link.base import Mesh
from mpcpipe.link.control import Control
from mpcpipe.link.fabric import Fabric, FabricLink
from mpcpipe.link.frame import Route
from mpcpipe.link.handshake import Session
from mpcpipe.link.pacer import Pacer
from mpcpipe.link.tcp import TcpLink
from mpcpipe.link.tls import Connection
from mpcpipe.random.tape import Holders

# A broken data connection is often the first sign of a failure whose cause a control message is about to tell.
_CAUSE_WAIT_S = 1.0


class Network:
    """What `connect` returns. Close it, or use it in a `with`: leaving by an exception aborts all parties with it."""

    def __init__(
        self, names: Sequence[str], session: Session, control: Control, deadline_s: float, pacer: Pacer | None = None
    ) -> None:
        self.party = session.party
        self.names = list(names)
        self.session = session
        self._control = control
        self._deadline_s, self._pacer = deadline_s, pacer
        self._meshes: list[Mesh] = []
        self._watchers: list[Callable[[BaseException], None]] = []
        self._links: list[TcpLink | FabricLink] = []

    def __repr__(self) -> str:
        return f"Network(party={self.party} of {len(self.names)}, workers={len(self._meshes)})"

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.abort(error)
        self.close()

    @property
    def parties(self) -> int:
        """How many parties there are."""
        return len(self.names)

    @property
    def keys(self) -> dict[Holders, bytes]:
        """The keys of a tape: this party's own, and one shared with each other party. Fresh in every session."""
        return dict(self.session.keys)

    @property
    def workers(self) -> int:
        """How many workers each party has."""
        return len(self._meshes)

    @property
    def failure(self) -> Exception | None:
        """Why all parties stop, if they do: the same cause at each."""
        return self._control.failure

    def mesh(self, worker: int = 0) -> Mesh:
        """The links of one worker."""
        return self._meshes[worker]

    def add_worker(self, sockets: Mapping[int, Connection]) -> None:
        """Give the next worker its connections, by peer. For `connect`."""
        worker = len(self._meshes)
        links = {
            peer: TcpLink(
                peer,
                self.names[peer],
                sock,
                Route(self.session.short, self.party, worker),
                Route(self.session.short, peer, worker),
                self._deadline_s,
                self._cause,
                self._pacer,
            )
            for peer, sock in sockets.items()
        }
        self._links.extend(links.values())
        self._meshes.append(Mesh(self.party, self.parties, links))

    def add_worker_of(self, fabric: Fabric, tag: int) -> None:
        """Give the next worker links over `fabric`, on which it is known as `tag`. For `connect`."""
        links = {
            peer: fabric.link(
                peer,
                self.names[peer],
                Route(self.session.short, self.party, tag),
                Route(self.session.short, peer, tag),
                self._deadline_s,
                self._cause,
            )
            for peer in range(self.parties)
            if peer != self.party
        }
        self._links.extend(links.values())
        self._meshes.append(Mesh(self.party, self.parties, links))

    def wait_failure(self, timeout_s: float) -> Exception | None:
        """Why all parties stop, after waiting for that at most so long."""
        return self._control.wait_failure(timeout_s)

    def abort(self, error: BaseException) -> None:
        """Stop all parties: each raises this error's class and message where it waits now or next. The first counts."""
        self._control.abort(error)

    def watch(self, on_failure: Callable[[BaseException], None]) -> None:
        """Call `on_failure` with the cause when all parties have to stop. From any thread, perhaps at once."""
        self._watchers.append(on_failure)
        if self.failure is not None:
            on_failure(self.failure)

    def interrupt(self) -> None:
        """End all data connections, so that blocked workers wake up and raise the cause."""
        for link in self._links:
            link.interrupt()
        for tell in self._watchers:
            if self.failure is not None:
                tell(self.failure)

    def close(self) -> None:
        """Send what is queued, say goodbye, and give back all connections. May be called twice."""
        for link in self._links:
            link.close()
        self._control.close()

    def _cause(self) -> Exception | None:
        return self._control.wait_failure(_CAUSE_WAIT_S)
