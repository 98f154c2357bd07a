"""Packets of the control sockets, made by remoting/codegen from registry/packets.yaml."""
