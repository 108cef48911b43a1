"""Reading the inert tree of a pickle: what a node is, where it is, and how it is
written as text or JSON.
"""
