"""`ckpt convert`: another format, plain classes, another dtype."""
