"""Adapters to other people's training loops; the tracker itself works in any.

`rankrise.tracking.integrations.huggingface.RankCallback` is a callback of HF `Trainer`, and
`rankrise.tracking.integrations.lightning.RankCallback` one of Lightning. Each module imports its framework.
"""
