"""Debian trixie's torch with CUDA 12.4, unpacked into a folder: what the software GPU executes without any GPU."""
