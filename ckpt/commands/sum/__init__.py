"""`ckpt sum`: the SHA-256 of each tensor."""
