"""The common parts of all commands, and the objects of `import ckpt`: options, output,
text.
"""
