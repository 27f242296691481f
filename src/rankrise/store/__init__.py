"""What a run leaves on disk, and the record of where it ran."""

from rankrise.store._environment import environment as environment

__all__ = ["environment"]
