"""What the processes of the sandbox plane say to each other, made by hack/generate.py from `api/protos/`."""
