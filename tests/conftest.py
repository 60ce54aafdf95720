# SPDX-License-Identifier: MIT
"""Fixtures shared by the suite: data paths, tiny models made on demand, open models.

Everything made or opened here lives as long as the test session, so that a file is written once
and a model loaded once, however many tests use it.
"""

import os

# Before numpy loads: the oracle's products are small, and its threads would only wait for cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from pathlib import Path

import numpy as np
import pytest
from esker.cli import main

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent


@pytest.fixture(scope="session")
def data_dir():
    """tests/data; its README.md says where every file is from."""
    return TESTS / "data"


@pytest.fixture(scope="session")
def oracle_dir(data_dir):
    """Tiny models and the reference logits of transformers."""
    return data_dir / "oracle"


@pytest.fixture(scope="session")
def demo_path():
    """The model that ships with the package."""
    return REPOSITORY / "python" / "esker" / "data" / "esker-demo.gguf"


@pytest.fixture(scope="session")
def reference(oracle_dir):
    """reference(name)[prompt] -> float32 [T, vocab], from <name>-hf.npz."""
    loaded = {}

    def load(name):
        if name not in loaded:
            with np.load(oracle_dir / f"{name}-hf.npz") as file:
                loaded[name] = dict(file)
        return loaded[name]

    return load


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """tiny_model(name, shape, options) -> path of a GGUF file, written at the first call.

    The name stands for the shape and the options: one name, one model.
    """
    from support.tiny_model import PLAIN, write_model

    folder = tmp_path_factory.mktemp("tiny")
    written = {}

    def make(name, shape, options=PLAIN):
        if name not in written:
            written[name] = (write_model(folder / f"{name}.gguf", shape, options), shape, options)
        path, *made_of = written[name]
        assert made_of == [shape, options], f"two tiny models are called {name}"
        return path

    return make


@pytest.fixture(scope="session")
def model_path(oracle_dir, tiny_model):
    """model_path(name) -> path of a model that has reference logits of the same name."""
    from support.tiny_model import SHAPE_A, SHAPE_B

    def find(name):
        shape = {"a": SHAPE_A, "b": SHAPE_B}.get(name)
        if shape is not None:
            return tiny_model(name, shape)
        return oracle_dir / f"{'micro-f32' if name == 'micro' else name}.gguf"

    return find


@pytest.fixture(scope="session")
def open_model():
    """open_model(path, **options) -> esker.Model, the same one for the same arguments."""
    import esker

    models = {}

    def open_(path, **options):
        key = (str(path), tuple(sorted(options.items())))
        if key not in models:
            models[key] = esker.Model(str(path), **options)
        return models[key]

    yield open_
    for model in models.values():
        model.close()


@pytest.fixture
def esker_(capsys):
    """esker_(*words) -> (status, stdout, stderr) of the command line."""

    def call(*words):
        try:
            status = main([str(word) for word in words])
        except SystemExit as exit_:
            status = exit_.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
