"""Reports as text: pure functions of a report and a width. Colour is a style name
beside the text.
"""
