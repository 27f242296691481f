"""The networks of the paper: its vision transformer, GPT-2, and the toy head with full matrices.

Sizes are frozen values; `build_model` makes the module. None has dropout, so training one draws no random number.
"""

from rankrise.lab.models._build import ModelConfig as ModelConfig
from rankrise.lab.models._build import build_model as build_model
from rankrise.lab.models._gpt import GPT as GPT
from rankrise.lab.models._gpt import GPTConfig as GPTConfig
from rankrise.lab.models._toy_head import ToyHead as ToyHead
from rankrise.lab.models._toy_head import ToyHeadConfig as ToyHeadConfig
from rankrise.lab.models._vit import VIT_B16 as VIT_B16
from rankrise.lab.models._vit import ViT as ViT
from rankrise.lab.models._vit import ViTConfig as ViTConfig
