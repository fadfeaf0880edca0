"""The RLRuns of a namespace: read, ask to go on, listen to their pods and their driver."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any, Self

from kubernetes import client, config, stream
from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError
from urllib3.exceptions import HTTPError

from seatrial_api.errors import InvalidInputError, SeatrialError
from seatrial_api.kubernetes_object import API_GROUP, API_VERSION
from seatrial_api.pods import ATTEMPT_LABEL, DRIVER_PORT, ROLE_LABEL, RUN_LABEL, SEGMENT_LABEL, Role
from seatrial_api.progress import Progress
from seatrial_api.rlrun import RLRun
from seatrial_operator.plan.observed import RESUME_ANNOTATION
from seatrial_operator.services.reading import UnreadableRunError, read_run

_TIMEOUT_SECONDS = 15
_RUNS = {"group": API_GROUP, "version": API_VERSION, "plural": "rlruns"}


class ClusterError(SeatrialError):
    """The cluster does not answer, or answers that it will not."""


@dataclass(frozen=True)
class ClusterRuns:
    """Runs of one namespace."""

    api: client.ApiClient
    namespace: str

    @classmethod
    @contextmanager
    def connect(cls, namespace: str | None = None, context: str | None = None) -> Iterator[Self]:
        """Connect as kubectl does: by `KUBECONFIG`, else `~/.kube/config`.

        Args:
            namespace: The context's own if empty.
            context: The current one if empty.

        Raises:
            InvalidInputError: if there is no such context.
            ClusterError: if a request made inside the block fails.
        """
        try:
            contexts, current = config.list_kube_config_contexts()
            chosen = next((one for one in contexts if one["name"] == context), None) if context else current
            if chosen is None:
                names = ", ".join(one["name"] for one in contexts)
                raise InvalidInputError(f"there is no context {context!r}; there are: {names}")
            api = config.new_client_from_config(context=chosen["name"])
        except (config.ConfigException, OSError) as error:
            raise InvalidInputError(f"no cluster to ask: {error}; set KUBECONFIG") from error
        try:
            yield cls(api, namespace or chosen["context"].get("namespace") or "default")
        except ApiException as error:
            raise ClusterError(_sentence(error)) from error
        except HTTPError as error:
            raise ClusterError(f"the cluster does not answer: {error}") from error
        finally:
            api.close()

    def get(self, name: str) -> RLRun:
        """One run.

        Raises:
            InvalidInputError: if there is none of this name, or one of another version.
        """
        try:
            found = self._custom.get_namespaced_custom_object(
                **_RUNS, namespace=self.namespace, name=name, _request_timeout=_TIMEOUT_SECONDS
            )
        except ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise InvalidInputError(
                    f"there is no RLRun {name} in namespace {self.namespace}; `kubectl get rl -A` lists them"
                ) from error
            raise
        try:
            seen = read_run(found)
        except UnreadableRunError as error:
            raise InvalidInputError(f"RLRun {name} is of another version of Seatrial: {error.fields}") from error
        return seen.run.model_copy(update={"status": seen.status})

    def resume(self, name: str) -> None:
        """Ask a run that was suspended, guarded or stopped to go on."""
        asked = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # noqa: TID251  any new value asks anew
        patch = {"metadata": {"annotations": {RESUME_ANNOTATION: asked}}, "spec": {"suspend": False}}
        self._custom.patch_namespaced_custom_object(
            **_RUNS, namespace=self.namespace, name=name, body=patch, _request_timeout=_TIMEOUT_SECONDS
        )

    def pods(self, name: str, role: Role | None = None) -> list[str]:
        """Names of a run's pods, newest first."""
        return self._pods(f"{RUN_LABEL}={name}" + (f",{ROLE_LABEL}={role.value}" if role else ""))

    def _pods(self, selector: str) -> list[str]:
        found = self._core.list_namespaced_pod(
            self.namespace, label_selector=selector, _request_timeout=_TIMEOUT_SECONDS
        ).items
        newest_first = sorted(found, key=lambda pod: pod.metadata.creation_timestamp, reverse=True)
        return [pod.metadata.name for pod in newest_first]

    def log_lines(self, pod: str, *, follow: bool, tail: int | None) -> Iterator[str]:
        """Lines of a pod's Ray container, as they come; where there are none yet, why.

        Args:
            pod: Name of the pod.
            follow: Wait for more until the pod ends.
            tail: Only so many of the last lines; all if empty.
        """
        try:
            response = self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container="ray",
                follow=follow,
                _preload_content=False,
                **({} if tail is None else {"tail_lines": tail}),
            )
        except ApiException as error:
            if error.status not in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}:
                raise
            yield f"(no log: {_sentence(error)})"
            return
        line = None
        for line in response:
            yield line.decode(errors="replace").rstrip("\n")
        if line is None:
            yield "(no log yet)"

    def progress(self, run: RLRun) -> Progress | None:
        """What a run's driver says now, through a forwarded port; none when no driver answers."""
        name, status = run.metadata.name, run.status
        if status is None or status.current is None:
            return None
        attempt = f"{SEGMENT_LABEL}={status.segment},{ATTEMPT_LABEL}={status.attempt}"
        heads = self._pods(f"{RUN_LABEL}={name},{ROLE_LABEL}={Role.HEAD.value},{attempt}")
        if not heads:
            return None
        try:
            secret = self._core.read_namespaced_secret(
                f"{name}-s{status.segment}-a{status.attempt}", self.namespace, _request_timeout=_TIMEOUT_SECONDS
            )
            token = base64.b64decode(secret.data["token"]).decode()
            return Progress.model_validate_json(self._ask(heads[0], "/v1/progress", token))
        except ApiException as error:
            if _is_forbidden(error):
                raise
            return None  # the attempt has just ended, or its head does not run yet
        except (OSError, HTTPException, ValidationError):
            return None

    def _ask(self, pod: str, path: str, token: str) -> bytes:
        forward = stream.portforward(
            self._core.connect_get_namespaced_pod_portforward, pod, self.namespace, ports=str(DRIVER_PORT)
        )
        connection = HTTPConnection("driver", timeout=_TIMEOUT_SECONDS)
        try:
            connection.sock = forward.socket(DRIVER_PORT)
            connection.sock.settimeout(_TIMEOUT_SECONDS)
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            if answer.status != HTTPStatus.OK:
                raise HTTPException(f"the driver answers {answer.status}")
            return answer.read()
        finally:
            connection.close()
            forward.close()

    @property
    def _core(self) -> Any:
        """The library calls every field of an answer optional; what is read here always is there."""
        return client.CoreV1Api(self.api)

    @property
    def _custom(self) -> Any:
        return client.CustomObjectsApi(self.api)


def _is_forbidden(error: ApiException) -> bool:
    """Whether we lack a right; a refused port-forward has its status in its text alone."""
    return error.status == HTTPStatus.FORBIDDEN or "Handshake status 403" in str(error.reason)


def _sentence(error: ApiException) -> str:
    """What the API server says is wrong, without its headers."""
    try:
        body: dict[str, Any] = json.loads(error.body or "")
        return str(body["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.status} {error.reason}"
