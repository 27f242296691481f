"""Adapters to other people's training loops; the tracker itself works in any."""

from rankrise.tracking.integrations._huggingface import huggingface_callback as huggingface_callback
from rankrise.tracking.integrations._lightning import lightning_callback as lightning_callback
