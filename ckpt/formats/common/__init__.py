"""The code that formats share: archives, directories, pickles, storages, names of
files, parts of writers.
"""
