"""What the commands cost beside their peers: `python -m benchmarks` prints one table,
and nothing here is a test.
"""
