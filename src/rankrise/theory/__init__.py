"""The theory as an engine: networks with diagonal or full weights, their gradient flow, and Algorithm 1.

`diagonal` holds networks h(x; u ⊙ v), their flow at any α and their stages; `matrix` holds heads with full matrices.
Both share data, losses, the step of the stiff solver and the status of a computation. `lazy_flow` trains a network
beside its linearisation.
"""

from rankrise.theory._lazy import TIGHT_CONSTANT as TIGHT_CONSTANT
from rankrise.theory._lazy import LazyFlow as LazyFlow
from rankrise.theory._lazy import LazyModel as LazyModel
from rankrise.theory._lazy import kappa as kappa
from rankrise.theory._lazy import lazy_flow as lazy_flow
from rankrise.theory._lazy import linearisation_bound as linearisation_bound
from rankrise.theory._lazy import tight_model as tight_model
from rankrise.theory._status import Status as Status
from rankrise.theory._tasks import TeacherTask as TeacherTask
from rankrise.theory._tasks import gaussian_start as gaussian_start
from rankrise.theory._tasks import teacher_task as teacher_task
from rankrise.theory.diagonal import Certificate as Certificate
from rankrise.theory.diagonal import Coordinate as Coordinate
from rankrise.theory.diagonal import Descent as Descent
from rankrise.theory.diagonal import DiagonalNetwork as DiagonalNetwork
from rankrise.theory.diagonal import Flow as Flow
from rankrise.theory.diagonal import PerturbationTest as PerturbationTest
from rankrise.theory.diagonal import PerturbedFlow as PerturbedFlow
from rankrise.theory.diagonal import StageEnsemble as StageEnsemble
from rankrise.theory.diagonal import Stages as Stages
from rankrise.theory.diagonal import StageTimes as StageTimes
from rankrise.theory.diagonal import Transformer as Transformer
from rankrise.theory.diagonal import activation_times as activation_times
from rankrise.theory.diagonal import attention_head as attention_head
from rankrise.theory.diagonal import descend as descend
from rankrise.theory.diagonal import incremental_stages as incremental_stages
from rankrise.theory.diagonal import linear as linear
from rankrise.theory.diagonal import perturb_flow as perturb_flow
from rankrise.theory.diagonal import perturb_minimum as perturb_minimum
from rankrise.theory.diagonal import perturb_transition as perturb_transition
from rankrise.theory.diagonal import solve_flow as solve_flow
from rankrise.theory.diagonal import stage_ensemble as stage_ensemble
from rankrise.theory.diagonal import stage_times as stage_times
from rankrise.theory.diagonal import transformer as transformer
from rankrise.theory.matrix import Circuit as Circuit
from rankrise.theory.matrix import Flag as Flag
from rankrise.theory.matrix import MatrixCertificate as MatrixCertificate
from rankrise.theory.matrix import MatrixDescent as MatrixDescent
from rankrise.theory.matrix import MatrixFlow as MatrixFlow
from rankrise.theory.matrix import MatrixNetwork as MatrixNetwork
from rankrise.theory.matrix import MatrixPrediction as MatrixPrediction
from rankrise.theory.matrix import MatrixStages as MatrixStages
from rankrise.theory.matrix import MatrixTransformer as MatrixTransformer
from rankrise.theory.matrix import matrix_descend as matrix_descend
from rankrise.theory.matrix import matrix_head as matrix_head
from rankrise.theory.matrix import matrix_sensing as matrix_sensing
from rankrise.theory.matrix import matrix_stages as matrix_stages
from rankrise.theory.matrix import matrix_transformer as matrix_transformer
from rankrise.theory.matrix import solve_matrix_flow as solve_matrix_flow
