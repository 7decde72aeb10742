"""The cache is the user's own, one builder at a time, and a build that was killed stands in nobody's way."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from mpcpipe.device import build, cache
from mpcpipe.device.build import Built
from mpcpipe.errors import KernelError


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MPCPIPE_CACHE", str(tmp_path / "own"))
    return tmp_path / "own" / "kernels"


class TestFolder:
    def test_is_the_users_alone(self, own: Path) -> None:
        assert cache.folder() == own
        assert stat.S_IMODE(own.stat().st_mode) == 0o700

    def test_where(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("MPCPIPE_CACHE", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache.root() == tmp_path / "mpcpipe" / "kernels"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache.root() == tmp_path / ".cache" / "mpcpipe" / "kernels"

    @pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
    @pytest.mark.parametrize("part", [".", ".."])
    def test_others_may_not_write(self, own: Path, mode: int, part: str) -> None:
        (cache.folder() / part).chmod(mode)
        with pytest.raises(KernelError, match=r"others may write to .*mode 07.*MPCPIPE_CACHE"):
            cache.folder()

    def test_belongs_to_somebody_else(self, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache.folder()
        me = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)
        with pytest.raises(KernelError, match=rf"belongs to user {me}, not to you \({me + 1}\)"):
            cache.folder()

    def test_is_no_link(self, own: Path, tmp_path: Path) -> None:
        own.parent.mkdir()
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        own.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(KernelError, match="is a link"):
            cache.folder()

    def test_cannot_be_made(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("MPCPIPE_CACHE", str(tmp_path / "file"))
        with pytest.raises(KernelError, match="MPCPIPE_CACHE"):
            cache.folder()


class TestLock:
    def test_one_builder_at_a_time(self, own: Path) -> None:
        order: list[str] = []
        waits = threading.Event()

        def second() -> None:
            waits.set()
            with cache.locked():
                order.append("second")

        with cache.locked():
            other = threading.Thread(target=second)
            other.start()
            waits.wait(10)
            other.join(0.2)
            order.append("first")
        other.join(10)
        assert order == ["first", "second"]

    def test_sweeps_what_is_unfinished(self, own: Path) -> None:
        with cache.locked() as folder:
            (folder / "building-old").mkdir()
            (folder / "building-old" / "half.o").write_text("half")
            (folder / "cuda-sm_90-whole").mkdir()
        with cache.locked():
            assert sorted(each.name for each in own.iterdir()) == ["cuda-sm_90-whole", "lock"]


def test_publishes_all_or_nothing(own: Path) -> None:
    with cache.locked() as folder:
        with pytest.raises(RuntimeError), cache.unfinished(folder) as place:
            (place / "a").write_text("1")
            raise RuntimeError
        for text in ("1", "2"):
            with cache.unfinished(folder) as place:
                (place / "a").write_text(text)
                assert cache.publish(place, "done") == folder / "done"
    assert (own / "done" / "a").read_text() == "2"
    assert sorted(each.name for each in own.iterdir()) == ["done", "lock"]


def test_json_is_whole_or_as_before(own: Path) -> None:
    file = cache.folder() / "x.json"
    cache.write_atomically(file, [1])
    with pytest.raises(TypeError):
        cache.write_atomically(file, [object()])
    assert json.loads(file.read_text()) == [1]
    assert [each.name for each in own.iterdir()] == ["x.json"]


def test_clean(own: Path) -> None:
    assert cache.clean() == []
    (cache.folder() / "cuda-x").mkdir()
    (own / "tiles-a.json").write_text("{}")
    assert cache.clean() == ["cuda-x", "tiles-a.json"]
    assert cache.clean() == []


class TestBuild:
    def test_a_killed_one_blocks_nobody(self, killed: list[Path], waves: dict[str, Built], built_cache: Path) -> None:
        assert killed and all((each / "libmpcpipe_gpu.so").exists() is False for each in killed)
        assert all(built.fresh and built.path.is_file() for built in waves.values())
        assert list(built_cache.glob("building-*")) == []

    def test_is_made_once(self, waves: dict[str, Built]) -> None:
        again = build.build("emulated", "wave64")
        assert (again.path, again.fresh) == (waves["wave64"].path, False)
        assert build.find_built("emulated", "wave64") == again
        assert "emulated-wave64" in next(name for name, _ in build.all_built() if "64" in name)

    def test_others_may_not_have_written_it(self, waves: dict[str, Built]) -> None:
        path = waves["wave64"].path
        path.chmod(0o777)
        try:
            with pytest.raises(KernelError, match="others may write to"):
                build.find_built("emulated", "wave64")
        finally:
            path.chmod(0o700)

    def test_shows_what_the_compiler_says(self, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("gpu", "cpu"):
            (tmp_path / name).mkdir()
        for name in ("depthwise", "product", "library"):
            (tmp_path / "gpu" / f"{name}.cpp").write_text("int f() { return no_such_thing; }\n")
        (tmp_path / "mpcpipe_kernels.h").write_text("")
        monkeypatch.setattr(build, "sources", lambda: tmp_path)
        with pytest.raises(KernelError, match=r"cannot build \w+ for wave64 .*1\):\n.*no_such_thing") as found:
            build.build("emulated", "wave64")
        assert found.value.exit_code == 22
        assert [each.name for each in own.iterdir()] == ["lock"]


def test_a_cpu_library_goes_where_it_is_looked_for(tmp_path: Path) -> None:
    library = tmp_path / "built.so"
    library.write_bytes(b"library")
    built = Built("cpu", "host", library, (), True)
    assert build.install_cpu(built, tmp_path).read_bytes() == b"library"
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelError, match="cannot be written"):
        build.install_cpu(built, tmp_path / "file")
