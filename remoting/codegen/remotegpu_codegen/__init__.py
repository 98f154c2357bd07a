"""Generates code and documents from the function tables in `remoting/registry`, for both ends of the wire.

Pure functions turn a registry into text, one module for each output. `outputs` lists the files, and `generate.py`
writes them. `make generate` runs it. The generated files are committed, so this package is not needed at run time.
"""
