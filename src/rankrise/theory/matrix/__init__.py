"""Networks with full matrices, h(x; A_1 B_1ᵀ …): products, gradients, and the gradient flow of an attention head."""

from rankrise.theory.matrix._flow_record import MatrixFlow as MatrixFlow
from rankrise.theory.matrix._matrix_algorithm import matrix_stages as matrix_stages
from rankrise.theory.matrix._matrix_examples import Circuit as Circuit
from rankrise.theory.matrix._matrix_examples import MatrixTransformer as MatrixTransformer
from rankrise.theory.matrix._matrix_examples import matrix_head as matrix_head
from rankrise.theory.matrix._matrix_examples import matrix_sensing as matrix_sensing
from rankrise.theory.matrix._matrix_examples import matrix_transformer as matrix_transformer
from rankrise.theory.matrix._matrix_flow import solve_matrix_flow as solve_matrix_flow
from rankrise.theory.matrix._matrix_network import MatrixNetwork as MatrixNetwork
from rankrise.theory.matrix._matrix_optimisers import MatrixDescent as MatrixDescent
from rankrise.theory.matrix._matrix_optimisers import matrix_descend as matrix_descend
from rankrise.theory.matrix._matrix_prediction import Flag as Flag
from rankrise.theory.matrix._matrix_prediction import MatrixPrediction as MatrixPrediction
from rankrise.theory.matrix._matrix_stage_records import MatrixCertificate as MatrixCertificate
from rankrise.theory.matrix._matrix_stage_records import MatrixStages as MatrixStages
