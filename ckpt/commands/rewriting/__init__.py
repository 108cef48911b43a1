"""The common work of the commands that write: the edited checkpoint, its names, its
files, and the report.
"""
