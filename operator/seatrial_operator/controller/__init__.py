"""What is looked at when: one queue of keys, and the workers that reconcile them."""
