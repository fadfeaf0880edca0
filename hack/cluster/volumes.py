"""Volumes over folders of this machine, for pods of a node."""

from pathlib import Path
from typing import Any

from hack.cluster.layout import NODE_NAME


def local_volume(
    namespace: str, claim: str, folder: Path, *, access: str = "ReadWriteMany", size: str = "5Gi"
) -> list[dict[str, Any]]:
    """A volume over a folder, and the namespace's claim to it and to no other.

    Args:
        namespace: whose pods may mount it.
        claim: name of the claim.
        folder: has to exist, and to belong to the pods' user if they write.
        access: mode of the volume and of the claim.
        size: told, not enforced.
    """
    name = f"{claim}-{namespace}"
    common = {"accessModes": [access], "storageClassName": ""}
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **common,
            "capacity": {"storage": size},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": claim},
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }
    wanted = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace},
        "spec": {**common, "resources": {"requests": {"storage": size}}, "volumeName": name},
    }
    return [volume, wanted]
