"""ONNX Runtime: its sessions live at the acceptor; what stands for them here, and what opens them there."""
