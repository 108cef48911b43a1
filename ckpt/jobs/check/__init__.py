"""`ckpt verify`, `sum`, `stats` and `lint`."""
