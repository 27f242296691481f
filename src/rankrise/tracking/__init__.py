"""Watch the rank rise in any PyTorch transformer, in any training loop.

`RankTracker` is the whole interface of a training loop; `rankrise.tracking.integrations` adapts it to HF Trainer and
Lightning.
"""

from rankrise.tracking._change import Change as Change
from rankrise.tracking._change import Directions as Directions
from rankrise.tracking._change import MatrixChange as MatrixChange
from rankrise.tracking._change import ProductChange as ProductChange
from rankrise.tracking._final import final_overlap as final_overlap
from rankrise.tracking._initial import initial_spectra as initial_spectra
from rankrise.tracking._probe import Probe as Probe
from rankrise.tracking._recorder import TrackingWarning as TrackingWarning
from rankrise.tracking._schedule import At as At
from rankrise.tracking._schedule import Every as Every
from rankrise.tracking._schedule import Schedule as Schedule
from rankrise.tracking._schedule import at as at
from rankrise.tracking._schedule import every as every
from rankrise.tracking._schedule import log_spaced as log_spaced
from rankrise.tracking._tracker import Estimate as Estimate
from rankrise.tracking._tracker import RankTracker as RankTracker
from rankrise.tracking.quantities import Quantity as Quantity
from rankrise.tracking.quantities import subspace_overlap as subspace_overlap
from rankrise.tracking.sinks import Sink as Sink
from rankrise.tracking.sinks import TensorBoardSink as TensorBoardSink
from rankrise.tracking.sinks import WandbSink as WandbSink
