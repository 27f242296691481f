"""What the paper claims, and what it leaves open, as predicates on the tables of runs: a number, a bound, a verdict.

Nothing is trained or solved here. A claim that fails is reported as failing; a claim whose runs are missing is reported
as not tested.
"""

from rankrise.lab.claims._claim import Claim as Claim
from rankrise.lab.claims._claim import Verdict as Verdict
from rankrise.lab.claims._evaluate import claims as claims
from rankrise.lab.claims._evaluate import describe_claims as describe_claims
from rankrise.lab.claims._evaluate import evaluate_claims as evaluate_claims
from rankrise.lab.claims._evaluate import write_verdicts as write_verdicts
from rankrise.lab.claims._outcomes import Outcome as Outcome
from rankrise.lab.claims._outcomes import outcomes as outcomes
from rankrise.lab.claims._questions import adam_cases as adam_cases
from rankrise.lab.claims._toy_curves import activation_times as activation_times
from rankrise.lab.claims._toy_curves import along as along
from rankrise.lab.claims._toy_curves import loss_curve as loss_curve
from rankrise.lab.claims._toy_curves import read_pushes as read_pushes
