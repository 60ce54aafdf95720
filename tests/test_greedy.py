# SPDX-License-Identifier: MIT
"""Greedy text of the trained demo models: the tokens that transformers writes.

data/greedy.json has 200 tokens for each of four prompts and file, with the distance between the
two best logits at every step. Where that is less than GAP_LEAST another correct implementation may
write the other token; a prompt that parts there is compared no further.
"""

import json
import os

import numpy as np
import pytest

GAP_LEAST = 1e-3
FILES = ("esker-demo", "esker-demo-bf16")
PROMPTS = ("how", "python", "psalm", "long")


@pytest.fixture(scope="module")
def greedy(data_dir):
    return json.loads((data_dir / "greedy.json").read_text())


@pytest.fixture(scope="module")
def demo_file(demo_path):
    repository = demo_path.parents[3]

    def find(name):
        if name == "esker-demo":
            return demo_path
        given = os.environ.get("ESKER_DEMO_BF16")
        path = given or repository.parent / "shared" / "demo" / f"{name}.gguf"
        if not given and not path.exists():
            pytest.skip(f"{name}.gguf (70 MB) is not here; ESKER_DEMO_BF16 names its path")
        return path

    return find


def assert_same_text(reference, tokens):
    """Equal up to the end or to a near tie."""
    for step, (want, got, gap) in enumerate(zip(reference["tokens"], tokens, reference["gaps"])):
        if got != want:
            assert gap <= GAP_LEAST, f"token {step} is {got}, not {want}, at a gap of {gap}"
            return
    assert len(tokens) == len(reference["tokens"])


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("file", FILES)
def test_greedy_tokens_equal_reference(file, prompt, greedy, demo_file, open_model):
    reference = greedy["files"][file][prompt]
    session = open_model(demo_file(file)).session()
    session.prefill(reference["prompt"])
    tokens = []
    for want in reference["tokens"]:
        tokens.append(int(np.argmax(session.logits())))
        if tokens[-1] != want:
            break
        session.decode(want)
    assert_same_text(reference, tokens)


def test_complete_writes_the_same(greedy, demo_file, open_model):
    reference = greedy["files"]["esker-demo"]["long"]
    model = open_model(demo_file("esker-demo"))
    result = model.complete(reference["prompt"], max_tokens=200, temperature=0)
    assert_same_text(reference, list(result.tokens))


def test_references_mostly_bind(greedy):
    """Near ties are few: the references do pin down the text."""
    for file in FILES:
        assert tuple(greedy["files"][file]) == PROMPTS
        for reference in greedy["files"][file].values():
            assert len(reference["tokens"]) == len(reference["gaps"]) == 200
            assert sum(gap <= GAP_LEAST for gap in reference["gaps"]) == 0
