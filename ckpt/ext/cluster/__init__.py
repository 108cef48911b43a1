"""Tasks on other machines, through an engine that exists: Dask. Loaded for `--cluster`
only.
"""
