"""`ckpt verify`: whether files are intact."""
