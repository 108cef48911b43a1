"""`ckpt rename`: names by substitutions."""
