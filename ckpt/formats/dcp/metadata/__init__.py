"""The file `.metadata` of a distributed checkpoint: what it says, and reading a large one in columns."""
