"""What a run leaves on disk, and the record of where it ran.

A run directory is written by one process, append-only, and sealed at its end; it can be read at any time in between.
"""

from rankrise.store._atomic import replacing as replacing
from rankrise.store._atomic import sync as sync
from rankrise.store._atomic import write_json as write_json
from rankrise.store._checkpoint import Checkpoint as Checkpoint
from rankrise.store._checkpoint import checkpoint_steps as checkpoint_steps
from rankrise.store._checkpoint import find_checkpoint as find_checkpoint
from rankrise.store._checkpoint import load_checkpoint as load_checkpoint
from rankrise.store._checkpoint import prune_checkpoints as prune_checkpoints
from rankrise.store._checkpoint import save_checkpoint as save_checkpoint
from rankrise.store._environment import environment as environment
from rankrise.store._failpoints import failpoint as failpoint
from rankrise.store._load import has_run as has_run
from rankrise.store._load import is_sealed as is_sealed
from rankrise.store._load import load_directions as load_directions
from rankrise.store._load import load_initial as load_initial
from rankrise.store._load import load_run as load_run
from rankrise.store._load import load_spec as load_spec
from rankrise.store._load import verify_run as verify_run
from rankrise.store._lock import RunBusyError as RunBusyError
from rankrise.store._lock import is_locked as is_locked
from rankrise.store._manifest import Manifest as Manifest
from rankrise.store._manifest import read_manifest as read_manifest
from rankrise.store._run import Run as Run
from rankrise.store._run import create_run as create_run
from rankrise.store._run import resume_run as resume_run
from rankrise.store._table import rows as rows
from rankrise.store._table import scalar_rows as scalar_rows
from rankrise.store._table import schema as schema
from rankrise.store._tensors import load_tensors as load_tensors
from rankrise.store._tensors import save_tensors as save_tensors
from rankrise.store._thin import copy_thin as copy_thin
