"""Metrics: what depends on data and was not paid for shows itself to nobody."""

import copy
import json
import logging

import jax
import numpy as np
import pytest

from fedvi.errors import PrivacyError
from fedvi.privacy import release
from fedvi.privacy.metrics import Private, Public, ReleasedMetric

SECRET = 0.123456789


def test_no_text_shows_a_private_value(caplog):
    metric = Private(SECRET)
    shown = [repr(metric), str(metric), f"{metric}", f"{metric:.3f}", str([metric])]
    logging.getLogger("test").warning("elbo %s", metric)
    assert all(str(SECRET)[:4] not in text for text in [*shown, caplog.text])
    assert metric.reveal() == SECRET


@pytest.mark.parametrize(
    "use",
    [
        float,
        int,
        bool,
        round,
        len,
        list,
        np.asarray,
        np.float64,
        lambda m: m.__reduce_ex__(2),
        copy.deepcopy,
        copy.copy,
        lambda m: m == SECRET,
        lambda m: m < 1.0,
        lambda m: m + 1.0,
        lambda m: 1.0 - m,
        jax.numpy.asarray,
    ],
)
def test_a_private_metric_is_no_value(use):
    with pytest.raises((PrivacyError, TypeError)) as caught:
        use(Private(SECRET))
    assert str(SECRET) not in str(caught.value)


def test_a_private_metric_is_not_json():
    for encode in (json.dumps, lambda m: json.dumps({"elbo": m}, default=vars)):
        with pytest.raises(TypeError):
            encode(Private(SECRET))


def test_only_a_release_makes_a_released_metric_and_nothing_private_is_declared_public():
    for forged in (SECRET, Private(SECRET), Public(1.0)):
        with pytest.raises(PrivacyError, match="only door"):
            ReleasedMetric(forged)
    with pytest.raises(PrivacyError, match="declared public"):
        Public(Private(SECRET))


def test_a_metric_cannot_be_changed_afterwards():
    for metric in (Public(1.0), Private(SECRET), ReleasedMetric(release.public(1.0))):
        with pytest.raises(PrivacyError, match="cannot be changed"):
            metric.value = 2.0
