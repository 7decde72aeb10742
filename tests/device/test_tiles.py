"""Tiles fit the device, and the choice among them is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcpipe.device import cache
from mpcpipe.device.build import Built
from mpcpipe.device.chooser import Tuner, read_choices
from mpcpipe.device.library import DeviceLibrary
from mpcpipe.device.machines import MACHINES, machine_like
from mpcpipe.device.tiles import MOST_LDS, ProductTile, product_choices, slide_columns, slide_tile, weight_parts


@pytest.fixture
def tiles(waves: dict[str, Built]) -> list[ProductTile]:
    return DeviceLibrary(waves["wave64"].path).tiles("u64")


class TestSlide:
    @settings(max_examples=200, deadline=None)
    @given(
        steps=st.tuples(st.integers(1, 600), st.integers(1, 2000)),
        kernel=st.sampled_from([3, 5, 7]),
        stride=st.sampled_from([1, 2]),
        gradient=st.booleans(),
        count=st.integers(1, 5000),
        size=st.sampled_from([4, 8]),
        budget=st.sampled_from([8192, 16384, 49152]),
    )
    def test_fits(
        self, steps: tuple[int, int], kernel: int, stride: int, gradient: bool, count: int, size: int, budget: int
    ) -> None:
        tile = slide_tile(steps, kernel, stride, gradient, count, size, budget)
        assert 1 <= tile.columns * tile.group <= 256
        assert 1 <= tile.rows <= steps[0] and 1 <= tile.group <= count
        near, step = -(-kernel // stride), 1 if gradient else stride
        pitch = -(-((tile.columns - 1) * step + (near if gradient else kernel)) // step) * step
        assert size * tile.group * ((tile.rows + near - 1) * step * pitch + kernel * kernel) <= MOST_LDS

    def test_as_published_where_maps_are_like_theirs(self) -> None:
        """Liu et al. 2024 keep 224 threads busy on MobileNet's maps, with whole rows or halves of them."""
        for columns in (7, 14, 28, 56, 112):
            width = slide_columns(columns, 3, 1)
            assert width * (256 // width) >= 224 and columns % width == 0

    def test_images_are_shared_until_the_device_is_full(self) -> None:
        machine = MACHINES["z100"]
        assert weight_parts(machine, 32, 64, 4) == 8
        assert weight_parts(machine, 32, 64, 64) == 1
        assert weight_parts(machine, 100000, 64, 1) == 1


class TestProduct:
    def test_are_what_the_library_says(self, tiles: list[ProductTile]) -> None:
        assert [tile.index for tile in tiles] == [1, 2, 3, 4, 5, 6, 7]
        assert {tile.cg for tile in tiles} == {1, 4, 8, 16, 32}
        first = tiles[0]
        assert (first.tn, first.tm, first.bm, first.bn) == (8, 4, 64, 128)
        assert all(tile.lds_elements * 8 <= MOST_LDS for tile in tiles)

    @pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
    def test_many_results_take_large_tiles_and_few_share_terms(self, machine: object, tiles: list[ProductTile]) -> None:
        many = product_choices(MACHINES["z100"], tiles, "u64", 512, 64 * 28 * 28, 256)[0]
        assert (many.tile.cg, many.parts) == (1, 1)
        few = product_choices(MACHINES["z100"], tiles, "u64", 64, 49, 1024)[0]
        assert few.tile.cg > 1 or few.parts > 1

    def test_parts_leave_every_block_something(self, tiles: list[ProductTile]) -> None:
        for choice in product_choices(MACHINES["a100"], tiles, "u64", 10, 10, 100):
            assert choice.parts == 1 or 100 // choice.parts >= 4 * choice.tile.depth

    def test_machines(self) -> None:
        assert machine_like("gfx928", 120).units == 120
        assert machine_like("sm_90").name == "H100 SXM"
        assert MACHINES["mi50"].macs_per_s("f32") == pytest.approx(6.6e12, rel=0.01)  # 13.3 TFLOPS in its data sheet
        assert MACHINES["a100"].macs_per_s("f32") == pytest.approx(9.75e12, rel=0.01)  # 19.5


class TestTuner:
    @pytest.fixture(autouse=True)
    def own(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("MPCPIPE_CACHE", str(tmp_path / "cache"))

    def tuner(self, ran: list[int]) -> Tuner:
        """Times a launch by what it appends."""

        def time_us(run: object) -> float:
            run()  # type: ignore[operator]
            return {1: 30.0, 2: 10.0, 3: 20.0}[ran[-1]]

        return Tuner("Some GPU/build", time_us)

    def test_times_once_and_remembers(self) -> None:
        ran: list[int] = []
        tuner = self.tuner(ran)
        assert tuner.choose("key", [1, 2, 3], str, ran.append) == 2
        assert ran == [1, 2, 3]
        assert tuner.choose("key", [1, 2, 3], str, ran.append) == 2
        assert self.tuner(ran).choose("key", [3, 2, 1], str, ran.append) == 2  # another process
        assert ran == [1, 2, 3]
        assert json.loads(tuner.file.read_text())["choices"] == {"key": "2"}
        assert tuner.file.name == "tiles-Some-GPU-build.json"

    def test_another_key_and_an_answer_that_is_gone(self) -> None:
        ran: list[int] = []
        tuner = self.tuner(ran)
        tuner.choose("a", [1, 3], str, ran.append)
        tuner.choose("b", [1, 2], str, ran.append)
        assert tuner.choose("a", [1, 2], str, ran.append) == 2
        assert read_choices(tuner.file) == {"a": "2", "b": "2"}

    def test_without_a_device_the_model_decides(self) -> None:
        assert Tuner("x", None).choose("key", [3, 1], str, lambda _: None) == 3

    @pytest.mark.parametrize("text", ["{", "[]", '{"version": 99, "choices": {"key": "1"}}', '{"version": 1}'])
    def test_a_damaged_file_is_no_answer(self, text: str) -> None:
        ran: list[int] = []
        tuner = self.tuner(ran)
        cache.folder()
        tuner.file.write_text(text)
        assert tuner.choose("key", [1, 2, 3], str, ran.append) == 2

    def test_nor_is_one_that_others_may_write(self) -> None:
        file = cache.folder() / "tiles-x.json"
        cache.write_atomically(file, {"version": 1, "choices": {"key": "1"}})
        assert read_choices(file) == {"key": "1"}
        file.chmod(0o666)
        assert read_choices(file) == {}
