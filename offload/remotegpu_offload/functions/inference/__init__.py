"""ONNX Runtime: its sessions live at the acceptor, and stubs stand for them in the program.

`shells` has the stubs, `acceptor` opens the sessions there, and `model` is a model's files on the wire. The profile
`onnxruntime.toml` names the stubs. No other module imports this folder: it is loaded when a stub of ONNX Runtime is
made.
"""
