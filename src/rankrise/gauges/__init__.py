"""Gauges of training beside the ranks: how concentrated attention is, and σReparam, which keeps it from collapse.

Functions on tensors and modules. What watches a model while it trains are the probes of `rankrise.tracking`.
"""

from rankrise.gauges._entropy import AttentionRows as AttentionRows
from rankrise.gauges._entropy import attention_entropy as attention_entropy
from rankrise.gauges._entropy import entropy_floor as entropy_floor
from rankrise.gauges._laziness import Laziness as Laziness
from rankrise.gauges._laziness import Start as Start
from rankrise.gauges._laziness import jvp as jvp
from rankrise.gauges._laziness import laziness as laziness
from rankrise.gauges._laziness import linearise as linearise
from rankrise.gauges._seen import SeenAttention as SeenAttention
from rankrise.gauges._seen import is_watched as is_watched
from rankrise.gauges._seen import seen_attention as seen_attention
from rankrise.gauges._sigma_reparam import SigmaReparam as SigmaReparam
from rankrise.gauges._sigma_reparam import fold_sigma as fold_sigma
from rankrise.gauges._sigma_reparam import sigma_reparam as sigma_reparam
from rankrise.gauges._zero_sum_loss import zero_sum_cross_entropy as zero_sum_cross_entropy
