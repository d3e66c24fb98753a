import numpy as np
import pytest
from hypothesis import given

from attnorm import measures
from strategies import clouds


def directions(cloud):
    x, _ = cloud
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@given(clouds(min_n=2))
def test_gap_is_one_minus_the_mean_over_pairs(cloud):
    theta = directions(cloud)
    pairs = (theta @ theta.T)[np.triu_indices(len(theta), 1)]
    np.testing.assert_allclose(measures.mean_cosine(theta), pairs.mean(), atol=1e-14)
    np.testing.assert_allclose(measures.gap(theta), 1 - pairs.mean(), atol=1e-14)


def test_variance_of_clustered_tokens_is_accurate_in_relative_terms():
    """Two unit vectors at angle 2e-9 have variance sin(1e-9)^2 = 1e-18, far below the rounding of a
    cosine."""
    half = 1e-9
    theta = np.array([[np.cos(half), np.sin(half)], [np.cos(half), -np.sin(half)]])
    np.testing.assert_allclose(measures.variance(theta), np.sin(half) ** 2, rtol=1e-12)


@given(clouds(min_n=2))
def test_energy_is_the_double_sum(cloud):
    theta = directions(cloud)
    expected = -sum(np.exp(2.0 * theta[j] @ theta[k]) for j in range(len(theta)) for k in range(len(theta)))
    np.testing.assert_allclose(measures.energy(theta, 2.0), expected, rtol=1e-13)


def test_log_energy_does_not_overflow():
    np.testing.assert_allclose(measures.log_energy(np.eye(3), 1e4), 1e4 + np.log(3), rtol=1e-15)


def test_angular_step_is_accurate_for_small_and_for_straight_angles():
    for angle in (1e-12, 0.3, np.pi - 1e-9, np.pi):
        path = np.array([[[1.0, 0.0]], [[np.cos(angle), np.sin(angle)]]])
        np.testing.assert_allclose(measures.angular_step(path), angle, rtol=1e-9)


def test_clusters_are_counted_through_chains():
    angles = np.array([0.0, 0.009, 0.018, 1.0, 1.005, 3.0])
    theta = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert measures.cluster_count(theta, angle=1e-2) == 3
    assert measures.cluster_count(theta, angle=1e-3) == 6
    assert measures.cluster_count(theta, angle=np.pi) == 1


def test_effective_rank_counts_equal_directions():
    assert measures.effective_rank(np.eye(5)) == pytest.approx(5)
    assert measures.effective_rank(np.ones((5, 3))) == pytest.approx(1)
    batch = np.stack([np.eye(3), np.ones((3, 3))])
    np.testing.assert_allclose(measures.effective_rank(batch), [3, 1])


def test_measures_read_batches():
    theta = np.random.default_rng(0).standard_normal((4, 2, 5, 3))
    for measure in (measures.variance, measures.gap, lambda x: measures.log_energy(x, 1.0)):
        np.testing.assert_allclose(measure(theta)[2, 1], measure(theta[2, 1]))
    assert measures.angular_step(theta).shape == (3, 2, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measures.gap(np.eye(3)[:1]), "at least two tokens; got n = 1"),
        (lambda: measures.variance([[np.nan, 1.0]]), "theta must be finite"),
        (lambda: measures.energy(np.eye(2), -1.0), "beta must be"),
        (lambda: measures.cluster_count(np.ones((2, 2, 2))), r"shape \(n, d\)"),
        (lambda: measures.cluster_count(np.eye(2), angle=0.0), "angle must be"),
        (lambda: measures.effective_rank(np.zeros((2, 2))), "zero vectors"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
