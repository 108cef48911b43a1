"""`ckpt rehome`: tensors on other devices."""
