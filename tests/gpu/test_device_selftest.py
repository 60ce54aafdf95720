# SPDX-License-Identifier: MIT
"""esker selftest and esker bench handshake on the simt device."""

import json

import pytest
from device_library import FILES, environment
from esker.cli import main


@pytest.fixture
def simt_device(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


def test_the_simt_device_passes(simt_device, capsys):
    assert main(["selftest", "--backend", "simt", "--quick", "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    checks = {check["name"]: check["detail"] for check in device["checks"]}
    assert "473 kernels" in checks["kernels compile"] and "26 cases" in checks["parity: matvec"]


def test_kernels_that_are_missing_fail(simt_device, monkeypatch, capsys):
    without = environment([file for file in FILES if file != "route"])
    monkeypatch.setenv("ESKER_SIMT_KERNEL_LIBRARIES", without["ESKER_SIMT_KERNEL_LIBRARIES"])
    assert main(["selftest", "--backend", "simt", "--quick"]) == 1
    out = capsys.readouterr().out
    assert "route: [simt] no such kernel: got route" in out
    for check in ("kernels compile", "parity: route", "demo text"):
        assert f"FAILED {check}" in out
    assert "ok     parity: matvec" in out


def test_a_handshake_is_measured(simt_device, tmp_path, capsys):
    out = str(tmp_path / "handshake.json")
    arguments = ["--backend", "simt", "--segments", "4", "--work", "20kB", "--quick", "--out", out]
    assert main(["bench", "handshake", *arguments]) == 0
    assert "a stop adds" in capsys.readouterr().out
    result = json.loads((tmp_path / "handshake.json").read_text())
    sides = result["summary"]["sides"]
    assert set(sides) == {"none", "bare", "covered"}
    assert all(side["window:ns"]["median"] > 0 for side in sides.values())


def test_the_cpu_has_no_handshake(capsys):
    assert main(["bench", "handshake", "--quick"]) == 1
    assert "handshake: got 'cpu', want a GPU" in capsys.readouterr().err
