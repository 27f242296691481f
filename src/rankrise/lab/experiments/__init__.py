"""Experiments as values: specs, the registry of names, and the runner.

A spec is everything the numbers of a run depend on; its hash names the run on disk. `rankrise list` and `rankrise run`
are this package at the shell.
"""

from rankrise.lab.experiments._by_experiment import runs_by_experiment as runs_by_experiment
from rankrise.lab.experiments._by_experiment import unread_runs as unread_runs
from rankrise.lab.experiments._experiment import SCALES as SCALES
from rankrise.lab.experiments._experiment import Experiment as Experiment
from rankrise.lab.experiments._folders import NamedSpec as NamedSpec
from rankrise.lab.experiments._folders import read_spec as read_spec
from rankrise.lab.experiments._kinds import missing_data as missing_data
from rankrise.lab.experiments._plan import PlannedRun as PlannedRun
from rankrise.lab.experiments._plan import plan_run as plan_run
from rankrise.lab.experiments._plan import vary as vary
from rankrise.lab.experiments._prediction import MethodResult as MethodResult
from rankrise.lab.experiments._prediction import PairedDifference as PairedDifference
from rankrise.lab.experiments._prediction import Prediction as Prediction
from rankrise.lab.experiments._prediction import paired_difference as paired_difference
from rankrise.lab.experiments._prediction import prediction_lines as prediction_lines
from rankrise.lab.experiments._prediction import read_prediction as read_prediction
from rankrise.lab.experiments._prediction_spec import PredictionSpec as PredictionSpec
from rankrise.lab.experiments._registry import experiments as experiments
from rankrise.lab.experiments._registry import family_members as family_members
from rankrise.lab.experiments._registry import find_experiment as find_experiment
from rankrise.lab.experiments._registry import network_of as network_of
from rankrise.lab.experiments._registry import scale_family as scale_family
from rankrise.lab.experiments._reproduce import Attempt as Attempt
from rankrise.lab.experiments._reproduce import Watch as Watch
from rankrise.lab.experiments._reproduce import carry_out as carry_out
from rankrise.lab.experiments._reproduce import estimate_seconds as estimate_seconds
from rankrise.lab.experiments._reproduce import is_full as is_full
from rankrise.lab.experiments._reproduction import Reproduction as Reproduction
from rankrise.lab.experiments._reproduction import plan_reproduction as plan_reproduction
from rankrise.lab.experiments._run import RunReport as RunReport
from rankrise.lab.experiments._run import execute_run as execute_run
from rankrise.lab.experiments._run import run_experiment as run_experiment
from rankrise.lab.experiments._spec import Spec as Spec
from rankrise.lab.experiments._spec import TrainingSpec as TrainingSpec
from rankrise.lab.experiments._spec import from_json as from_json
from rankrise.lab.experiments._spec import spec_hash as spec_hash
from rankrise.lab.experiments._spec import to_json as to_json
from rankrise.lab.experiments._summary import RunSummary as RunSummary
from rankrise.lab.experiments._summary import summarise_run as summarise_run
from rankrise.lab.experiments._theory_specs import DescentSpec as DescentSpec
from rankrise.lab.experiments._theory_specs import FlowSpec as FlowSpec
from rankrise.lab.experiments._theory_specs import MatrixFlowSpec as MatrixFlowSpec
from rankrise.lab.experiments._theory_specs import RobustnessSpec as RobustnessSpec
from rankrise.lab.experiments._theory_specs import StagesSpec as StagesSpec
from rankrise.lab.experiments._theory_specs import TheorySpec as TheorySpec
from rankrise.lab.experiments._theory_specs import ToyTask as ToyTask
from rankrise.lab.experiments._thin import thin_run as thin_run
from rankrise.lab.training import joined_processes as joined_processes
