"""Gauges of training beside the ranks: how concentrated attention is.

Pure functions on tensors. What watches a model while it trains are the probes of `rankrise.tracking`.
"""

from rankrise.gauges._entropy import AttentionRows as AttentionRows
from rankrise.gauges._entropy import attention_entropy as attention_entropy
from rankrise.gauges._entropy import entropy_floor as entropy_floor
from rankrise.gauges._seen import SeenAttention as SeenAttention
from rankrise.gauges._seen import is_watched as is_watched
from rankrise.gauges._seen import seen_attention as seen_attention
