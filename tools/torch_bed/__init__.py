"""Debian trixie's torch with CUDA 12.4, unpacked into a folder, for tests on the software GPU without a real GPU."""
