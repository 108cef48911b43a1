"""The functions of `import ckpt`: checkpoints as mappings, and one function for each
command.
"""
