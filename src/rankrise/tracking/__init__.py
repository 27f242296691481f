"""Watch the rank rise in any PyTorch transformer, in any training loop.

`RankTracker` is the whole interface of a training loop; `rankrise.tracking.integrations` adapts it to HF Trainer and
Lightning. A `Quantity` measures the weights, and a `Probe` measures gradients and activations; both give a
`Measurement`. Probes for any model are in `rankrise.tracking.probes`.
"""

from rankrise.store import Alert as Alert
from rankrise.store import read_alerts as read_alerts
from rankrise.tracking._afterwards import final_overlap as final_overlap
from rankrise.tracking._afterwards import initial_spectra as initial_spectra
from rankrise.tracking._alerts import AlertRule as AlertRule
from rankrise.tracking._alerts import RankCollapse as RankCollapse
from rankrise.tracking._alerts import RankOneSpike as RankOneSpike
from rankrise.tracking._alerts import StalledHead as StalledHead
from rankrise.tracking._alerts import Trace as Trace
from rankrise.tracking._change import Change as Change
from rankrise.tracking._change import Directions as Directions
from rankrise.tracking._change import MatrixChange as MatrixChange
from rankrise.tracking._change import ProductChange as ProductChange
from rankrise.tracking._estimate import Estimate as Estimate
from rankrise.tracking._measurement import Measurement as Measurement
from rankrise.tracking._measurement import Probe as Probe
from rankrise.tracking._measurement import Quantity as Quantity
from rankrise.tracking._quantities import subspace_overlap as subspace_overlap
from rankrise.tracking._recorder import TrackingWarning as TrackingWarning
from rankrise.tracking._schedule import At as At
from rankrise.tracking._schedule import Every as Every
from rankrise.tracking._schedule import Schedule as Schedule
from rankrise.tracking._schedule import at as at
from rankrise.tracking._schedule import every as every
from rankrise.tracking._schedule import log_spaced as log_spaced
from rankrise.tracking._sinks import MlflowSink as MlflowSink
from rankrise.tracking._sinks import Sink as Sink
from rankrise.tracking._sinks import TensorBoardSink as TensorBoardSink
from rankrise.tracking._sinks import TrackioSink as TrackioSink
from rankrise.tracking._sinks import WandbSink as WandbSink
from rankrise.tracking._summary import layer_summary as layer_summary
from rankrise.tracking._tracked_run import Exist as Exist
from rankrise.tracking._tracked_run import RunDirectoryError as RunDirectoryError
from rankrise.tracking._tracker import RankTracker as RankTracker
from rankrise.tracking.probes import *  # noqa: F403 all of them, so that a new probe is named in one place only
