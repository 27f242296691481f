"""Checkpoints as files that someone else wrote: every header, index and name is checked before it is believed."""

from rankrise.checkpoints.files._adapter_files import STACK_ORDER as STACK_ORDER
from rankrise.checkpoints.files._adapter_files import LowRankDelta as LowRankDelta
from rankrise.checkpoints.files._checkpoint import Checkpoint as Checkpoint
from rankrise.checkpoints.files._checkpoint import open_checkpoint as open_checkpoint
from rankrise.checkpoints.files._folders import find_inside as find_inside
from rankrise.checkpoints.files._folders import leads_out as leads_out
from rankrise.checkpoints.files._folders import show as show
from rankrise.checkpoints.files._hub import local_path as local_path
from rankrise.checkpoints.files._image_adapters import METADATA as METADATA
from rankrise.checkpoints.files._peft_settings import PeftSettings as PeftSettings
from rankrise.checkpoints.files._quantised import is_buffer as is_buffer
from rankrise.checkpoints.files._safetensors import Layout as Layout
from rankrise.checkpoints.files._safetensors import TensorInfo as TensorInfo
from rankrise.checkpoints.files._safetensors import num_bytes as num_bytes
from rankrise.checkpoints.files._safetensors import open_safetensors as open_safetensors
from rankrise.checkpoints.files._safetensors import stream_tensors as stream_tensors
from rankrise.checkpoints.files._torch_files import is_weights as is_weights
