# SPDX-License-Identifier: MIT
"""The host's names of kernels, tiles and instances are those of the sources; each kernel has a case."""

import contextlib
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from esker import _core, parity, tiles

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


class Notes:
    """A device that does nothing but note what it is asked for."""

    def __init__(self):
        self.kernels = set()

    def run(self, area, kernel, args, buffers, **how):
        self.kernels.add(kernel)


def test_every_kernel_is_run_by_a_parity_case(monkeypatch):
    """Cases go on to their next kernel whatever the one before left undone."""
    for area in parity.AREAS:
        module = importlib.import_module(f"esker.parity.{area}")
        for name in ("check", "within", "same_bits"):
            monkeypatch.setattr(module, name, lambda *_: None, raising=False)
    monkeypatch.setattr(np.testing, "assert_array_equal", lambda *_: None)
    notes, want = Notes(), set(_core.gpu_kernel_names())
    for case in parity.all_cases():
        if notes.kernels >= want:
            break
        with np.errstate(all="ignore"), contextlib.suppress(parity.Failed, parity.Skipped):
            case.run(notes)
    assert notes.kernels == want


@pytest.mark.parametrize("use", ["matvec", "gate_up", "down"])
def test_a_tile_of_every_family_is_one_that_can_be_kept(use):
    for family in ("apple10", "simt", "none"):
        for rows, cols in ((640, 2560), (2560, 640), (10240, 2560), (320, 10240)):
            tile = tuple(
                _core.gpu_tile(family, use, "IQ3_S" if cols % 256 == 0 else "Q2_0", rows, cols)
            )
            assert tiles._fits(tiles.Product(use, "IQ3_S", rows, cols), tile)
