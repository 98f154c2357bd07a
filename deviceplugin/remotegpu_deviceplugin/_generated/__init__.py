"""Written by tools/generate_rpc.py; a test checks that writing them again changes nothing."""
