"""The extensions: one capability in one folder, which the program works without."""
