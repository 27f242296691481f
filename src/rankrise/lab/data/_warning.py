"""The category of every warning of this package, so that one filter can name them."""


class DataWarning(UserWarning):
    """Data that was read, but is not quite what was asked for."""
