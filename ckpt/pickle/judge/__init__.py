"""The judge of what loading a pickle would run: each name and each call, against closed
lists.
"""
