"""Questions in plain words about a checkpoint, and the parts of it that answer them."""
