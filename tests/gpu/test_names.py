# SPDX-License-Identifier: MIT
"""The host's names of kernels, tiles and instances are those of the sources."""

import re
from pathlib import Path

import pytest
from esker import _core, tiles

METAL = Path(__file__).parents[2] / "metal"
PLAIN = re.compile(r"(?<!> )\[\[kernel\]\](?: \[\[[^\]]*\]\])* void (\w+)\(")
TEMPLATE = re.compile(r"template <[^>]*>\s*\[\[kernel\]\](?: \[\[[^\]]*\]\])* void (\w+)\(")
INSTANCE = re.compile(r'template \[\[host_name\("(\w+)"\)\]\]')


def kernels():
    names = []
    for path in sorted(METAL.glob("*.metal")):
        text = path.read_text()
        templates = set(TEMPLATE.findall(text))
        names += [name for name in PLAIN.findall(text) if name not in templates]
        names += INSTANCE.findall(text)
    return names


def test_every_kernel_has_one_name():
    names = kernels()
    assert len(names) == len(set(names)) > 400


def test_every_name_of_the_host_is_a_kernel():
    missing = set(_core.gpu_kernel_names()) - set(kernels())
    assert not missing


def test_every_kernel_is_one_that_the_host_can_name():
    assert not set(kernels()) - set(_core.gpu_kernel_names())


@pytest.mark.parametrize("use", ["matvec", "gate_up", "down"])
def test_a_tile_of_every_family_is_one_that_can_be_kept(use):
    for family in ("apple10", "simt", "none"):
        for rows, cols in ((640, 2560), (2560, 640), (10240, 2560), (320, 10240)):
            tile = tuple(
                _core.gpu_tile(family, use, "IQ3_S" if cols % 256 == 0 else "Q2_0", rows, cols)
            )
            assert tiles._fits(tiles.Product(use, "IQ3_S", rows, cols), tile)
