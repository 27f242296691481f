"""The census: every model type of transformers, resolved and compared with its own attention."""
