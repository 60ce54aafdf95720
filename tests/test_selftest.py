# SPDX-License-Identifier: MIT
"""esker selftest on the cpu, and what "auto" makes of its outcome; GPUs: tests/gpu/test_device_selftest.py."""

import json
from pathlib import Path

import esker.selftest
import pytest
from esker import _core, devices
from esker.cli import main


def test_the_cpu_passes(capsys):
    assert main(["selftest", "--backend", "cpu", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("esker ") and lines[-1] == "selftest passed"
    assert [line.split()[:2] for line in lines if " ok " in line] == [
        ["ok", "products"],
        ["ok", "demo"],
    ]


def test_json(capsys):
    assert main(["selftest", "--backend", "cpu", "--quick", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (device,) = result["devices"]
    assert result["passed"] and device["backend"] == "cpu" and device["passed"]


def test_a_wrong_text_fails(capsys, monkeypatch):
    real = json.loads

    def changed(text):
        value = real(text)
        if "texts" in value:
            value["texts"][0]["tokens"][3] += 1
        return value

    monkeypatch.setattr(esker.selftest.json, "loads", changed)
    assert main(["selftest", "--backend", "cpu", "--quick"]) == 1
    out = capsys.readouterr().out
    assert "FAILED demo text" in out and "token 3: got" in out and out.endswith("selftest FAILED\n")


def test_the_shipped_texts_are_those_of_transformers(data_dir):
    every = json.loads((data_dir / "greedy.json").read_text())["files"]["esker-demo"]
    path = Path(esker.selftest.__file__).parent / "data" / "demo-greedy.json"
    shipped = json.loads(path.read_text())["texts"]
    want = [{"prompt": t["prompt"], "tokens": t["tokens"][:64]} for t in every.values()]
    assert shipped == want


class Fake:
    description, family = "a GPU", "none"


@pytest.fixture
def one_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "cache_folder", lambda: str(tmp_path))
    monkeypatch.setattr(_core, "gpu_device_names", lambda: ["metal"])
    monkeypatch.setattr(_core, "GpuDevice", lambda name: Fake())
    return Fake()


def test_auto_is_a_gpu_that_passed(one_gpu):
    assert devices.choose() == "cpu"
    devices.record("metal", one_gpu, True)
    assert devices.choose() == "metal"
    devices.record("metal", one_gpu, False)
    assert devices.choose() == "cpu"


def test_auto_is_the_cpu_after_a_new_driver(one_gpu, monkeypatch):
    devices.record("metal", one_gpu, True)
    monkeypatch.setattr(Fake, "description", "a GPU with another driver")
    assert devices.choose() == "cpu"


def test_auto_is_the_cpu_where_the_gpu_is_gone(one_gpu, monkeypatch):
    devices.record("metal", one_gpu, True)

    def gone(name):
        raise esker.DeviceError("no device")

    monkeypatch.setattr(_core, "GpuDevice", gone)
    assert devices.choose() == "cpu"
