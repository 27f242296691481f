"""Networks with full matrices: the gradient flow of an attention head, its singular values and conserved quantities."""

from rankrise.theory.matrix._matrix_flow import HeadWeights as HeadWeights
from rankrise.theory.matrix._matrix_flow import MatrixFlow as MatrixFlow
from rankrise.theory.matrix._matrix_flow import solve_matrix_flow as solve_matrix_flow
