"""A subpackage of `paged`, and one of its eleven modules.

Each module has a number, which the modules above add up. Only `paged` imports them, and they import nothing outside of
this folder.
"""
