# SPDX-License-Identifier: MIT
"""How finely the matrix products read activations: what each fineness costs against float32 ones.

Exact is the default and what every other test holds. With fewer bits rows differ a little, and
where a routing or a choice of blocks nearly ties, a row may differ much; so medians are held
tightly and means loosely.
"""

import esker
import numpy as np
import pytest
from support.compare import kl_divergence
from support.prompts import PROMPT_NAMES, prompts

# Median and mean KL of a row, in nats, at most.
LIMITS = {"exact": (1e-10, 1e-6), "fine": (1e-6, 1e-4), "coarse": (1e-2, 1e-1)}


@pytest.fixture
def rows_kl(model_path, open_model, reference):
    """rows_kl(model, fineness) -> KL of every row of every prompt from the float32 reference."""

    def measure(name, fineness):
        model = open_model(model_path(name), activations=fineness)
        return np.concatenate(
            [kl_divergence(reference(name)[p], model.logits(prompts()[p])) for p in PROMPT_NAMES]
        )

    return measure


@pytest.mark.parametrize("name", ["mq-mix1", "mq-mix2"])
def test_each_fineness_keeps_its_price(name, rows_kl):
    medians = []
    for fineness, (median_most, mean_most) in LIMITS.items():
        kl = rows_kl(name, fineness)
        medians.append(np.median(kl))
        assert medians[-1] <= median_most, fineness
        assert kl.mean() <= mean_most, fineness
    # Each has fewer bits than the one before: the option does something.
    assert medians[0] < medians[1] / 100 < medians[2] / 100**2


def test_exact_is_the_default(open_model, model_path):
    tokens = prompts()["n65"]
    default = esker.Model(str(model_path("mq-mix1")))
    assert default.options.activations == "exact"
    exact = open_model(model_path("mq-mix1"), activations="exact")
    assert np.array_equal(default.logits(tokens), exact.logits(tokens))
    default.close()


def test_an_unknown_fineness_is_refused(model_path):
    with pytest.raises(esker.UsageError, match="activations.*rough.*exact"):
        esker.Model(str(model_path("micro")), activations="rough")
