"""A subpackage of `paged`, and one of its eleven modules.

Each module holds a number, and its importers add the numbers up. Only `paged` imports the modules, and they import
nothing outside of this folder.
"""
