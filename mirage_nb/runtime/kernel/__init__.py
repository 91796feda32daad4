"""A muGraph as plain data, and what runs it on a GPU: the very modules that a saved file is made of.

Only `saved`, which writes and reads such files, imports anything else of the package.
"""
