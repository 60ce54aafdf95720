# SPDX-License-Identifier: MIT
"""Logits against transformers (float32, eager) on the same weights: every prompt, every row."""

import pytest
from support.compare import assert_close_and_same_top, compare
from support.prompts import PROMPT_NAMES, prompts

# Two float32 implementations that sum in another order come to 3e-5; a wrong rounding anywhere
# (activations in half, a stale state, one block selected otherwise) to 1e-3 and more.
DIFF_LIMIT = 5e-4
KL_LIMIT = 1e-6


@pytest.mark.parametrize("prompt", PROMPT_NAMES)
@pytest.mark.parametrize("name", ["micro", "micro-f16", "a", "b"])
def test_logits_equal_reference(name, prompt, model_path, open_model, reference):
    logits = open_model(model_path(name)).logits(prompts()[prompt])
    assert logits.dtype == "float32"
    assert_close_and_same_top(reference(name)[prompt], logits, DIFF_LIMIT, f"{name} {prompt}")


@pytest.mark.parametrize("prompt", PROMPT_NAMES)
@pytest.mark.parametrize("name", ["mq-mix1", "mq-mix2"])
def test_quantised_logits_equal_reference(name, prompt, model_path, open_model, reference):
    """15 weight types between the two files; the reference ran on the dequantised weights."""
    result = compare(
        reference(name)[prompt], open_model(model_path(name)).logits(prompts()[prompt])
    )
    assert result.kl_mean <= KL_LIMIT, f"{name} {prompt}: {result}"


@pytest.mark.parametrize("prompt", ["n65", "eos300"])
@pytest.mark.parametrize("name", ["micro", "a", "b"])
def test_decoded_logits_equal_reference(name, prompt, model_path, open_model, reference):
    """Token by token: the other graph, and every state handed on at every position."""
    logits = open_model(model_path(name)).logits(prompts()[prompt], chunk=1)
    assert_close_and_same_top(reference(name)[prompt], logits, DIFF_LIMIT, f"{name} {prompt}")
