"""Columns too small to matter: graded columns against mpmath, maps against a fine integration."""

import mpmath
import numpy as np

from rankrise.theory.matrix._propagators import GradedColumns, off


def test_graded_columns_keep_their_relative_accuracy_over_hundreds_of_digits():
    rng = np.random.default_rng(0)
    columns, maps = rng.standard_normal((6, 3)), rng.standard_normal((40, 6, 6))
    maps[:, range(6), range(6)] *= np.exp([4.0, 2.0, 0.0, -1.0, -2.0, -3.0])
    graded = GradedColumns.of(columns, -500.0)
    for matrix in maps:
        graded.apply(matrix)
    with mpmath.workdps(200):
        product = mpmath.matrix(columns.tolist())
        for matrix in maps:
            product = mpmath.matrix(matrix.tolist()) * product
        squares = mpmath.eigsy(product.T * product, eigvals_only=True)
        expected = sorted((float(mpmath.log(square) / 2) for square in squares), reverse=True)
    np.testing.assert_allclose(graded.logs, np.array(expected) - 500.0, rtol=0, atol=1e-11)
    np.testing.assert_allclose(graded.units.T @ graded.units, np.eye(3), atol=1e-13)


def test_the_projection_takes_away_the_ranges_of_both_factors():
    rng = np.random.default_rng(1)
    factors = rng.standard_normal((7, 2))
    projection = off(factors, 4)
    np.testing.assert_allclose(projection @ projection, projection, atol=1e-13)
    np.testing.assert_allclose(projection[:4, :4] @ factors[:4], 0, atol=1e-13)
    np.testing.assert_allclose(projection[4:, 4:] @ factors[4:], 0, atol=1e-13)
    assert abs(np.trace(projection) - 3) < 1e-12
