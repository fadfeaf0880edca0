"""The kinds of objects that the operator touches."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, override
from urllib.parse import quote

from seatrial_api.kubernetes_object import API_GROUP, API_VERSION

type Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind, with its place in the API."""

    group: str
    """API group; empty for the core."""
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of one object, or of all in a namespace, or in all namespaces."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part is not None]
        return "/".join(parts)


RLRUNS = Resource(API_GROUP, API_VERSION, "rlruns", "RLRun")
ROLLOUT_POOLS = Resource(API_GROUP, API_VERSION, "rolloutpools", "RolloutPool")
WORLD_IMAGES = Resource(API_GROUP, API_VERSION, "worldimages", "WorldImage")
RAY_JOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
PODS = Resource("", "v1", "pods", "Pod")
POD_TEMPLATES = Resource("", "v1", "podtemplates", "PodTemplate")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
NODES = Resource("", "v1", "nodes", "Node")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
JOBS = Resource("batch", "v1", "jobs", "Job")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Which object: all that a queue has to know of it."""

    kind: str
    namespace: str
    name: str

    @override
    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(resource: Resource, item: Object) -> ObjectKey:
    """The key of an object of this kind."""
    return ObjectKey(resource.kind, item["metadata"]["namespace"], item["metadata"]["name"])


def without_managers(item: Object) -> Object:
    """An object to be kept, without the record of who set which field, which is larger than most specs."""
    return {**item, "metadata": {key: told for key, told in item["metadata"].items() if key != "managedFields"}}


@dataclass(frozen=True, slots=True)
class Watch:
    """Objects to hear of, and what to do about it."""

    resource: Resource
    labels: str
    """Label selector; empty for all objects of the kind."""
    notice: Callable[[Object, bool], Iterable[ObjectKey]]
    """Called with an object as it is now, or was last, and whether it is gone; the keys that this may concern."""
