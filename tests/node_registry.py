"""Images in the registry of a test cluster's node, where pods pull them from."""

import re

from hack.cluster import Cluster


def pushed(cluster: Cluster, image: str) -> str:
    """An image of the node in the node's registry, by digest."""
    host, _, rest = cluster.push(image).partition("/")
    repository, _, tag = rest.rpartition(":")
    types = ", ".join(f"application/vnd.oci.image.{kind}.v1+json" for kind in ("index", "manifest"))
    head = cluster.run("curl", "-sI", "-H", f"Accept: {types}", f"http://{host}/v2/{repository}/manifests/{tag}")
    found = re.search(r"sha256:[0-9a-f]{64}", head)
    assert found is not None, head
    return f"{host}/{repository}@{found[0]}"
