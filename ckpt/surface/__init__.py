"""What all commands share, and what `import ckpt` gives: options, output, the objects of Python."""
