"""The commands: one room for each, with what it takes, does, says and draws."""
