# SPDX-License-Identifier: MIT
"""esker.parity.cases: what a case is, and that a wrong kernel fails one."""

import numpy as np
import pytest
from esker.errors import FormatError
from esker.parity import AREAS, Failed, all_cases
from esker.parity.cases import Case, check, launch, parametrize, within


class Doubler:
    """A device with one kernel, which doubles."""

    def __init__(self, factor=2.0):
        self.factor, self.calls = np.float32(factor), []

    def run(self, area, kernel, args, buffers, **how):
        self.calls.append((area, kernel, args, how["constants"], how["order"]))
        buffers[1][:] = self.factor * buffers[0]


@parametrize("n, sign", [(3, 1), (4, -1)])
@parametrize("order", ["forward", "random"])
def case_double(n, sign, order):
    x, y = sign * np.ones(n, np.float32), np.zeros(n, np.float32)
    launch("double", b"", [x, y], groups=(1,), threads=(n,), constants={1: 2}, order=order)
    within(np.abs(y - 2 * x).max(), 1e-6)


def of(function, **arguments):
    return Case("doubling", "a case", function, arguments)


def test_a_case_runs_on_the_device_it_is_given():
    device = Doubler()
    assert of(case_double, n=3, sign=1, order="random").run(device) == 0
    assert device.calls == [("doubling", "double", b"", {1: 2}, "random")]


def test_a_wrong_kernel_fails_and_the_figures_are_told():
    with pytest.raises(Failed, match=r"an error of 0\.5, at most 1e-06 allowed"):
        of(case_double, n=3, sign=1, order="forward").run(Doubler(2.5))


def test_the_worst_error_is_a_share_of_its_limit():
    def two_limits():
        within(0.1, 1.0)
        within(3.0, 10.0)

    assert of(two_limits).run(Doubler()) == pytest.approx(0.3)


@pytest.mark.parametrize("bad", [np.nan, 2.0])
def test_what_is_no_number_is_above_every_limit(bad):
    with pytest.raises(Failed):
        within(bad, 1.0)


def test_a_check_fails_and_so_does_an_assertion_of_numpy():
    with pytest.raises(Failed, match="not as it should be 7"):
        check(False, 7)
    with pytest.raises(Failed, match="Arrays are not equal"):
        of(lambda: np.testing.assert_array_equal([1], [2])).run(Doubler())


def test_what_numpy_cannot_use_is_a_failure_and_the_devices_errors_stay_what_they_are():
    with pytest.raises(Failed, match="IndexError: index 7 is out of bounds"):
        of(lambda: np.zeros(3)[7]).run(Doubler())

    class Lost:
        def run(self, *_, **__):
            raise FormatError("the device is gone")

    with pytest.raises(FormatError, match="gone"):
        of(case_double, n=3, sign=1, order="forward").run(Lost())


def test_values_are_combined():
    rows = [[arguments for arguments, _ in part] for part in case_double.parameters]
    assert rows == [
        [{"order": "forward"}, {"order": "random"}],
        [{"n": 3, "sign": 1}, {"n": 4, "sign": -1}],
    ]


def test_every_case_has_a_name_of_its_own():
    cases = all_cases()
    names = [(case.area, case.name) for case in cases]
    assert len(set(names)) == len(names) > 1000
    assert {case.area for case in cases} == set(AREAS)
