"""`ckpt strip`: names without the prefixes of wrappers."""
