"""OCI images without a registry and without a builder: archives made of files of this machine."""
