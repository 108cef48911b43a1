"""Writing distributed checkpoints. Nothing here is loaded by who reads them."""
