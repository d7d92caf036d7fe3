"""A package of somebody else: it adds one of each thing that can be added. Tests install copies of it."""
