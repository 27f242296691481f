"""Experiments as values: specs, the registry of names, and the runner.

A spec is everything the numbers of a run depend on; its hash names the run on disk. What a run is, by kind, is in
`rankrise.lab.experiments.kinds`. `rankrise list` and `rankrise run` are this package at the shell. Importing it loads
no PyTorch.
"""

from rankrise.lab.experiments._by_experiment import runs_by_experiment as runs_by_experiment
from rankrise.lab.experiments._by_experiment import unread_runs as unread_runs
from rankrise.lab.experiments._carry_out import Attempt as Attempt
from rankrise.lab.experiments._carry_out import Estimator as Estimator
from rankrise.lab.experiments._carry_out import PlanWatcher as PlanWatcher
from rankrise.lab.experiments._carry_out import attempt_run as attempt_run
from rankrise.lab.experiments._carry_out import carry_out as carry_out
from rankrise.lab.experiments._carry_out import estimate_seconds as estimate_seconds
from rankrise.lab.experiments._carry_out import is_full as is_full
from rankrise.lab.experiments._carry_out import write_durations as write_durations
from rankrise.lab.experiments._execute import RunNumbers as RunNumbers
from rankrise.lab.experiments._execute import RunReport as RunReport
from rankrise.lab.experiments._execute import execute_run as execute_run
from rankrise.lab.experiments._execute import run_experiment as run_experiment
from rankrise.lab.experiments._execute import summarise_run as summarise_run
from rankrise.lab.experiments._fields import field_names as field_names
from rankrise.lab.experiments._fields import with_fields as with_fields
from rankrise.lab.experiments._plan import PlannedRun as PlannedRun
from rankrise.lab.experiments._plan import Reproduction as Reproduction
from rankrise.lab.experiments._plan import look_again as look_again
from rankrise.lab.experiments._plan import missing_data as missing_data
from rankrise.lab.experiments._plan import plan_reproduction as plan_reproduction
from rankrise.lab.experiments._plan import plan_run as plan_run
from rankrise.lab.experiments._plan import vary as vary
from rankrise.lab.experiments._registry import experiments as experiments
from rankrise.lab.experiments._registry import family_members as family_members
from rankrise.lab.experiments._registry import find_experiment as find_experiment
from rankrise.lab.experiments._registry import network_of as network_of
from rankrise.lab.experiments._registry import scale_family as scale_family
from rankrise.lab.experiments._registry import scale_one as scale_one
from rankrise.lab.experiments._spec import SCALES as SCALES
from rankrise.lab.experiments._spec import Experiment as Experiment
from rankrise.lab.experiments._spec import NamedSpec as NamedSpec
from rankrise.lab.experiments._spec import from_json as from_json
from rankrise.lab.experiments._spec import read_spec as read_spec
from rankrise.lab.experiments._spec import spec_hash as spec_hash
from rankrise.lab.experiments._spec import to_json as to_json
from rankrise.lab.experiments.kinds import AdamPhasesSpec as AdamPhasesSpec
from rankrise.lab.experiments.kinds import DescentSpec as DescentSpec
from rankrise.lab.experiments.kinds import EnsembleSpec as EnsembleSpec
from rankrise.lab.experiments.kinds import FlowSpec as FlowSpec
from rankrise.lab.experiments.kinds import Kind as Kind
from rankrise.lab.experiments.kinds import LazySpec as LazySpec
from rankrise.lab.experiments.kinds import MatrixDescentSpec as MatrixDescentSpec
from rankrise.lab.experiments.kinds import MatrixFlowSpec as MatrixFlowSpec
from rankrise.lab.experiments.kinds import MatrixStagesSpec as MatrixStagesSpec
from rankrise.lab.experiments.kinds import ModularSpec as ModularSpec
from rankrise.lab.experiments.kinds import RobustnessSpec as RobustnessSpec
from rankrise.lab.experiments.kinds import Spec as Spec
from rankrise.lab.experiments.kinds import StagesSpec as StagesSpec
from rankrise.lab.experiments.kinds import TheorySpec as TheorySpec
from rankrise.lab.experiments.kinds import ToyTask as ToyTask
from rankrise.lab.experiments.kinds import TrainingSpec as TrainingSpec
from rankrise.lab.experiments.kinds import kind_of as kind_of
from rankrise.lab.training import joined_processes as joined_processes
