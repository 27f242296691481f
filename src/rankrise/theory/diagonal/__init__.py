"""Networks with diagonal weights, h(x; u ⊙ v): gradient flow at any α, Algorithm 1, and tests of its assumptions."""

from rankrise.theory.diagonal._algorithm import incremental_stages as incremental_stages
from rankrise.theory.diagonal._convergence import StageTimes as StageTimes
from rankrise.theory.diagonal._convergence import stage_times as stage_times
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork as DiagonalNetwork
from rankrise.theory.diagonal._ensemble import StageEnsemble as StageEnsemble
from rankrise.theory.diagonal._ensemble import stage_ensemble as stage_ensemble
from rankrise.theory.diagonal._examples import Coordinate as Coordinate
from rankrise.theory.diagonal._examples import Transformer as Transformer
from rankrise.theory.diagonal._examples import attention_head as attention_head
from rankrise.theory.diagonal._examples import linear as linear
from rankrise.theory.diagonal._examples import transformer as transformer
from rankrise.theory.diagonal._flow import Flow as Flow
from rankrise.theory.diagonal._flow import activation_times as activation_times
from rankrise.theory.diagonal._flow import solve_flow as solve_flow
from rankrise.theory.diagonal._optimisers import Descent as Descent
from rankrise.theory.diagonal._optimisers import descend as descend
from rankrise.theory.diagonal._perturbations import PerturbationTest as PerturbationTest
from rankrise.theory.diagonal._perturbations import PerturbedFlow as PerturbedFlow
from rankrise.theory.diagonal._perturbations import perturb_flow as perturb_flow
from rankrise.theory.diagonal._perturbations import perturb_minimum as perturb_minimum
from rankrise.theory.diagonal._perturbations import perturb_transition as perturb_transition
from rankrise.theory.diagonal._stage_records import Certificate as Certificate
from rankrise.theory.diagonal._stage_records import Stages as Stages
