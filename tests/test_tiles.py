# SPDX-License-Identifier: MIT
"""What `esker tune` keeps, and which products it looks at."""

import json

import pytest
from esker import _core, tiles
from esker.cli import main
from esker.model import demo_path


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")


def choice(tile):
    return tiles.Choice(tile, 90.0, (32, 1, 4, 1, 0, 0), 100.0, 1 << 20, 1.01)


def test_choices_are_kept_by_device_and_product():
    first, second = (
        tiles.Product("matvec", "Q4_K", 640, 2560),
        tiles.Product("down", "Q2_0", 2560, 640),
    )
    tiles.store("metal", {first: choice((16, 2, 4, 1, 0, 0))})
    tiles.store("metal", {second: choice((8, 2, 4, 1, 0, 0))})
    tiles.store("cuda", {first: choice((4, 1, 8, 2, 0, 0))})
    assert sorted(tiles.load("metal")) == [
        ("down", "Q2_0", 2560, 640, (8, 2, 4, 1, 0, 0)),
        ("matvec", "Q4_K", 640, 2560, (16, 2, 4, 1, 0, 0)),
    ]
    tiles.store("metal", {first: choice((32, 1, 2, 1, 0, 0))})
    assert ("matvec", "Q4_K", 640, 2560, (32, 1, 2, 1, 0, 0)) in tiles.load("metal")
    assert tiles.load("nothing") == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: "no json",
        lambda stored: json.dumps({**stored, "version": 99}),
        lambda stored: json.dumps(
            {"version": stored["version"], "devices": {"metal": [{"use": 1}]}}
        ),
        lambda stored: json.dumps(stored).replace("Q4_K", "Q4_Z"),
        lambda stored: json.dumps([]),
    ],
)
def test_a_damaged_file_holds_nothing(damage):
    tiles.store("metal", {tiles.Product("matvec", "Q4_K", 640, 2560): choice((16, 2, 4, 1, 0, 0))})
    with open(tiles.cache_path()) as file:
        stored = json.load(file)
    with open(tiles.cache_path(), "w") as file:
        file.write(damage(stored))
    assert tiles.load("metal") == []


def test_a_tile_that_no_kernel_has_is_left_out():
    bad = [
        (5, 1, 4, 1, 0, 0),
        (32, 3, 4, 1, 0, 0),
        (32, 1, 2, 4, 0, 0),
        (32, 1, 4, 1, 1, 0),
        (32, 1, 8, 8, 0, 1),
    ]
    for tile in bad:
        tiles.store("metal", {tiles.Product("matvec", "Q4_K", 640, 2560): choice(tile)})
        assert tiles.load("metal") == []


def test_products_are_those_of_a_decoded_token():
    info = _core.file_info(demo_path())
    found = tiles.products(info)
    config = info["config"]
    assert len(found) == len(set(found))
    uses = {p.use for p in found}
    assert uses == {"matvec", "gate_up", "down"}
    downs = [p for p in found if p.use == "down"]
    assert all((p.rows, p.cols) == (config["d_model"], config["d_expert"]) for p in downs)


def test_the_cpu_backend_has_no_tiles(capsys):
    assert main(["tune", "--backend", "cpu"]) == 1
    assert "the cpu kernels choose for themselves" in capsys.readouterr().err
