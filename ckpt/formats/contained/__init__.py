"""Archives of a library that hold checkpoints as members: Stable-Baselines3, NeMo."""
