"""Where a key stands in a job file, for messages: tomllib does not keep line numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mpcpipe.errors import JobError

_TABLE = re.compile(r"^\s*(\[\[|\[)\s*([A-Za-z0-9_.\- ]+?)\s*\]\]?")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\-]+)\s*=")


def lines_of(text: str) -> dict[str, int]:
    """Line numbers from 1 of all tables and keys, by dotted key; entries of [[data.rows]] are `data.rows[0]`, ..."""
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    inside = ""
    for number, line in enumerate(text.split("\n"), 1):
        if table := _TABLE.match(line):
            inside = table[2].replace(" ", "")
            if table[1] == "[[":
                counts[inside] = counts.get(inside, -1) + 1
                inside = f"{inside}[{counts[inside]}]"
            else:
                # A sub-table of an array of tables belongs to its last entry.
                for array, last in counts.items():
                    if inside.startswith(f"{array}."):
                        inside = f"{array}[{last}]{inside[len(array) :]}"
            found.setdefault(inside, number)
        elif key := _KEY.match(line):
            found.setdefault(f"{inside}.{key[1]}" if inside else key[1], number)
    return found


@dataclass(frozen=True)
class Where:
    """A job's text by name, to say where a key stands. `given` holds the keys set on the command line."""

    name: str
    lines: dict[str, int] = field(default_factory=dict)
    given: frozenset[str] = frozenset()

    def error(self, key: str, sentence: str) -> JobError:
        """A JobError about `key`: the file, the line of the key or of the nearest table around it, and the sentence."""
        part = key
        while part:
            if part in self.given:
                return JobError(f"--set {part}: {key}: {sentence}" if part != key else f"--set {key}: {sentence}")
            if part in self.lines:
                return JobError(f"{self.name}, line {self.lines[part]}: {key}: {sentence}")
            part = part[: max(part.rfind("."), part.rfind("["), 0)]
        return JobError(f"{self.name}: {key}: {sentence}" if self.name else f"{key}: {sentence}")
