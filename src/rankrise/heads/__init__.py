"""Who is K, Q, V, O in a module or a state dict: canonical (layer, head, role) views of attention weights.

`resolve(source)` returns recipes, not tensors: names, slices and orientations that read a live module, saved initial
weights, a file or a gathered shard alike.
"""

from rankrise.heads._families import LAYOUTS as LAYOUTS
from rankrise.heads._inventory import canonical_names as canonical_names
from rankrise.heads._layout import Layout as Layout
from rankrise.heads._linear import LinearWeight as LinearWeight
from rankrise.heads._linear import linear_weights as linear_weights
from rankrise.heads._parametrised import named_weights as named_weights
from rankrise.heads._parametrised import read_weight as read_weight
from rankrise.heads._resolve import resolve as resolve
from rankrise.heads._views import CIRCUITS as CIRCUITS
from rankrise.heads._views import AttentionLayer as AttentionLayer
from rankrise.heads._views import HeadMap as HeadMap
from rankrise.heads._views import LatentInput as LatentInput
from rankrise.heads._views import LowRankUpdate as LowRankUpdate
from rankrise.heads._views import NormGain as NormGain
from rankrise.heads._views import WeightView as WeightView
