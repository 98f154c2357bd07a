"""Reads the function tables in `remoting/registry` and writes what both ends of the wire, and people, need of them.

Pure functions turn a registry into text (one module per output); `outputs` names the files, `generate.py` writes them.
Called by `make generate`. The generated files are committed, so nothing here is needed at run time.
"""
