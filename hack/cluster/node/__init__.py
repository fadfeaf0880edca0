"""What makes a copy a node: namespaces of its own, a runtime, a kubelet, and a network for its pods."""
