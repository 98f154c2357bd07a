"""Reads and changes objects of a cluster, with the user's own permissions and kubectl's kubeconfig."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from remotegpu.cli import exits

Object = dict[str, Any]

_SECONDS: Final = 10.0
_PAGE: Final = 500


class RefusedError(Exception):
    """Raised if the API server refuses a request, or does not answer. `status` is the HTTP status; 0: no answer."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


class Cluster:
    def __init__(self, kubeconfig: Path | None = None, context: str = "") -> None:
        """Reads the kubeconfig. Raises CliError if the client library is missing or no cluster is configured."""
        try:
            from kubernetes import client, config  # noqa: PLC0415 (takes half a second, and only some have it)
        except ImportError:
            said = "this needs Kubernetes' client: `python -m pip install 'remotegpu[kubernetes]'`"
            raise exits.CliError(exits.SOFTWARE, said) from None
        configuration = client.Configuration()
        try:
            config.load_kube_config(
                str(kubeconfig) if kubeconfig else None, context or None, client_configuration=configuration
            )
        except config.ConfigException as error:
            said = (
                f"no way to a cluster is known ({error}): give --kubeconfig FILE, or see `kubectl config get-contexts`"
            )
            raise exits.CliError(exits.UNAVAILABLE, said) from None
        configuration.retries = False
        self._api = client.ApiClient(configuration)
        self.server: str = configuration.host
        self.namespace = _namespace(config, kubeconfig, context)

    def get(self, path: str) -> Object:
        found: Object = self._call("GET", path)
        return found

    def list(self, path: str, selector: str = "", fields: str = "") -> list[Object]:
        """Returns all objects under `path`, in pages. `selector` and `fields` select by labels and by fields."""
        found: list[Object] = []
        query = {"limit": str(_PAGE)}
        query |= {key: value for key, value in (("labelSelector", selector), ("fieldSelector", fields)) if value}
        while True:
            page = self._call("GET", path, query)
            found += page["items"]
            if not (token := page["metadata"].get("continue")):
                return found
            query["continue"] = token

    def try_to_create(self, path: str, body: Object) -> Object:
        """Creates an object as a dry run. Returns the object that would be stored. Raises RefusedError."""
        made: Object = self._call("POST", path, {"dryRun": "All"}, body)
        return made

    def patch(self, path: str, body: Object) -> Object:
        """Applies a JSON merge patch. Returns the stored object. Raises RefusedError."""
        stored: Object = json.loads(self._send("PATCH", path, {}, body, "application/merge-patch+json"))
        return stored

    def text(self, path: str, **query: str) -> str:
        """Returns a response that is text, such as a log. Raises RefusedError."""
        return self._send("GET", path, query, None).decode(errors="replace")

    def _call(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Object | None = None) -> Any:
        return json.loads(self._send(method, path, query or {}, body))

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None,
        content_type: str = "application/json",
    ) -> bytes:
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415 (as in `__init__`)
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 (comes with the client)

        headers = {"Accept": "application/json", "Content-Type": content_type}
        request = self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._api.call_api(*request, _request_timeout=_SECONDS)
            content: bytes = answer.read()
        except (HTTPError, ApiException) as error:
            raise RefusedError(0, f"the API server at {self.server} does not answer: {_reason(error)}") from None
        if answer.status >= 400:
            raise RefusedError(answer.status, _said(content))
        return content


class Target(NamedTuple):
    """A claim, named by its pod or by its own name."""

    cluster: Cluster
    namespace: str
    name: str
    is_claim: bool


def _namespace(config: Any, kubeconfig: Path | None, context: str) -> str:
    """Returns the namespace of the context, as kubectl does; `default` without one."""
    contexts, current = config.list_kube_config_contexts(str(kubeconfig) if kubeconfig else None)
    chosen = next((each for each in contexts if each["name"] == context), current)
    return str(chosen["context"].get("namespace") or "default")


def _reason(error: Exception) -> str:
    return " ".join(str(getattr(error, "reason", None) or error).split())


def _said(content: bytes) -> str:
    """Returns the message of a Status object; the beginning of any other content."""
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:500]
