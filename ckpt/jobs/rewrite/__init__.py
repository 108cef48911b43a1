"""The commands that write: each is an edit of the tree."""
