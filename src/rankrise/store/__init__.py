"""What a run leaves on disk, and the record of where it ran.

A run directory is written by one process, append-only, and sealed at its end; it can be read at any time in between.
"""

from rankrise.store._alerts import Alert as Alert
from rankrise.store._alerts import alert_rows as alert_rows
from rankrise.store._alerts import read_alerts as read_alerts
from rankrise.store._arrays import read_npy as read_npy
from rankrise.store._arrays import read_npz as read_npz
from rankrise.store._atomic import load_tensors as load_tensors
from rankrise.store._atomic import replacing as replacing
from rankrise.store._atomic import save_tensors as save_tensors
from rankrise.store._atomic import sync as sync
from rankrise.store._atomic import write_json as write_json
from rankrise.store._checkpoints import TrainingState as TrainingState
from rankrise.store._checkpoints import checkpoint_steps as checkpoint_steps
from rankrise.store._checkpoints import find_checkpoint as find_checkpoint
from rankrise.store._checkpoints import load_checkpoint as load_checkpoint
from rankrise.store._checkpoints import prune_checkpoints as prune_checkpoints
from rankrise.store._checkpoints import save_checkpoint as save_checkpoint
from rankrise.store._environment import environment as environment
from rankrise.store._failpoints import failpoint as failpoint
from rankrise.store._following import Followed as Followed
from rankrise.store._following import RunFollower as RunFollower
from rankrise.store._limits import MOST_BYTES as MOST_BYTES
from rankrise.store._limits import MOST_NUMBERS as MOST_NUMBERS
from rankrise.store._limits import NO_LIMITS as NO_LIMITS
from rankrise.store._limits import Limit as Limit
from rankrise.store._lock import RunBusyError as RunBusyError
from rankrise.store._lock import is_locked as is_locked
from rankrise.store._reading import copy_thin as copy_thin
from rankrise.store._reading import has_run as has_run
from rankrise.store._reading import is_sealed as is_sealed
from rankrise.store._reading import load_directions as load_directions
from rankrise.store._reading import load_initial as load_initial
from rankrise.store._reading import load_run as load_run
from rankrise.store._reading import load_spec as load_spec
from rankrise.store._reading import verify_run as verify_run
from rankrise.store._schema import Manifest as Manifest
from rankrise.store._schema import read_json as read_json
from rankrise.store._schema import read_manifest as read_manifest
from rankrise.store._table import rows as rows
from rankrise.store._table import scalar_rows as scalar_rows
from rankrise.store._table import schema as schema
from rankrise.store._untrusted import UntrustedFolder as UntrustedFolder
from rankrise.store._untrusted import UntrustedInputError as UntrustedInputError
from rankrise.store._untrusted import is_part as is_part
from rankrise.store._untrusted import open_file as open_file
from rankrise.store._untrusted import show as show
from rankrise.store._writing import Dropped as Dropped
from rankrise.store._writing import LaterRowsError as LaterRowsError
from rankrise.store._writing import Run as Run
from rankrise.store._writing import create_run as create_run
from rankrise.store._writing import resume_run as resume_run
