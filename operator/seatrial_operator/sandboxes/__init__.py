"""The broker: keeps sandboxes warm, hands them out, takes them back. A process of its own beside the operator."""
