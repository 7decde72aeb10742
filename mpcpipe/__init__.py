"""mpcpipe trains PyTorch models on data that nobody may see.

    mpcpipe.train(job)                       a job file, all parties as processes of this machine
    with mpcpipe.local(parties=3) as parties:
        parties.run(program)                 a program of yours, all parties as threads of this process

Nothing heavy is imported before one of these names is used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["Local", "MpcpipeError", "Party", "Secret", "__version__", "local", "train"]

if TYPE_CHECKING:
    from mpcpipe.api import train
    from mpcpipe.errors import MpcpipeError
    from mpcpipe.programs.local import Local, Party, local
    from mpcpipe.programs.secret import Secret
else:
    _HOMES = {
        "Local": "mpcpipe.programs.local",
        "MpcpipeError": "mpcpipe.errors",
        "Party": "mpcpipe.programs.local",
        "Secret": "mpcpipe.programs.secret",
        "local": "mpcpipe.programs.local",
        "train": "mpcpipe.api",
    }

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'mpcpipe' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return __all__
