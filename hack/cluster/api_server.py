"""The few requests that bringing a cluster up needs, over the standard library alone."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class ApiServer:
    """The API server as the administrator sees it. One connection per call: callers may be threads."""

    def __init__(self, url: str, pki: Path) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 443
        self._tls = ssl.create_default_context(cafile=pki / "ca.crt")
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and decoded answer (text where it is not JSON).

        Raises:
            OSError: if the server cannot be reached.
        """
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._tls, timeout=10)
        try:
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except http.client.HTTPException as exc:
            raise ConnectionError(f"{method} {path}: {exc!r}") from exc
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def exists(self, path: str) -> bool:
        """Whether the path is served and answers 200; a server that cannot be reached is a no."""
        try:
            return self.request("GET", path)[0] == http.HTTPStatus.OK
        except OSError:
            return False


def is_ready(thing: dict[str, Any]) -> bool:
    """Whether an object's condition Ready holds."""
    conditions = thing.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
