# SPDX-License-Identifier: MIT
"""The cases of esker.parity as pytest tests on the simt device."""

import pytest
import simt
from esker.parity import Skipped, all_cases


class Simt:
    """tests/simt as the device under test."""

    def run(self, area, kernel, args, buffers, **how):
        simt.device(area).run(kernel, args, buffers, **how)


def parity_tests(area):
    """A test of every case of an area."""

    @pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in all_cases([area])])
    def test(case):
        try:
            case.run(Simt())
        except Skipped as reason:
            pytest.skip(str(reason))

    return test
