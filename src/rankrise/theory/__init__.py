"""The theory as an engine: networks with diagonal weights, their gradient flow at any α, and Algorithm 1."""

from rankrise.theory._certificates import Certificate as Certificate
from rankrise.theory._convergence import StageTimes as StageTimes
from rankrise.theory._convergence import stage_times as stage_times
from rankrise.theory._flow import Flow as Flow
from rankrise.theory._flow import activation_times as activation_times
from rankrise.theory._flow import solve_flow as solve_flow
from rankrise.theory._matrix_flow import HeadWeights as HeadWeights
from rankrise.theory._matrix_flow import MatrixFlow as MatrixFlow
from rankrise.theory._matrix_flow import solve_matrix_flow as solve_matrix_flow
from rankrise.theory._networks import DiagonalNetwork as DiagonalNetwork
from rankrise.theory._networks import attention_head as attention_head
from rankrise.theory._networks import linear as linear
from rankrise.theory._optimisers import Descent as Descent
from rankrise.theory._optimisers import descend as descend
from rankrise.theory._robustness import PerturbationTest as PerturbationTest
from rankrise.theory._robustness import perturb_minimum as perturb_minimum
from rankrise.theory._robustness import perturb_transition as perturb_transition
from rankrise.theory._stages import Stages as Stages
from rankrise.theory._stages import incremental_stages as incremental_stages
from rankrise.theory._status import Status as Status
from rankrise.theory._tasks import TeacherTask as TeacherTask
from rankrise.theory._tasks import gaussian_start as gaussian_start
from rankrise.theory._tasks import teacher_task as teacher_task
from rankrise.theory._transformer import Coordinate as Coordinate
from rankrise.theory._transformer import Transformer as Transformer
from rankrise.theory._transformer import transformer as transformer
