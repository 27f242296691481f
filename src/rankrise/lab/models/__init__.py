"""The networks of the paper: its vision transformer, GPT-2, and the toy head with full matrices.

Sizes are frozen values, which load no PyTorch; `build_model` makes the module. No network has dropout, so training one
draws no random number.
"""

from typing import TYPE_CHECKING

from rankrise._lazy import lazy_names as _lazy_names
from rankrise.lab.models._configs import MODELS as MODELS
from rankrise.lab.models._configs import VIT_B16 as VIT_B16
from rankrise.lab.models._configs import GPTConfig as GPTConfig
from rankrise.lab.models._configs import ModelConfig as ModelConfig
from rankrise.lab.models._configs import Size as Size
from rankrise.lab.models._configs import ToyHeadConfig as ToyHeadConfig
from rankrise.lab.models._configs import ViTConfig as ViTConfig
from rankrise.lab.models._configs import build_model as build_model

if TYPE_CHECKING:
    from rankrise.lab.models._transformers import GPT as GPT
    from rankrise.lab.models._transformers import ToyHead as ToyHead
    from rankrise.lab.models._transformers import ViT as ViT

__getattr__, __dir__ = _lazy_names(__name__, {"_transformers": ("GPT", "ToyHead", "ViT")})
