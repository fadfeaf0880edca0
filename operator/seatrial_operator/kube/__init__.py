"""The one door to the Kubernetes API."""
