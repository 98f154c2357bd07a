"""The operator's settings, read from its environment."""

import datetime
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from remotegpu_operator.usage.journal import Accounting, Retention


class SettingsError(Exception):
    """A required variable is not set. The message has the variable and the value that it must have."""


@dataclass(frozen=True, slots=True)
class Settings:
    namespace: str
    # The identity of this process as holder of the Lease: the name of its pod.
    identity: str
    appliance_image: str
    image_pull_policy: str
    # A file with one token for all appliances; None: each appliance gets its own token.
    token_file: Path | None = None
    pod_uid: str = ""
    # A new value replaces the certificate authority, in overlapping steps.
    ca_generation: str = "1"
    # The Secret with an authority from another provider; empty: the operator creates an authority.
    ca_secret: str = ""
    http_port: int = 8080
    dashboard_port: int | None = None  # None: no dashboard
    # Labels of other namespaces whose pods may read metrics.
    metrics_from: Mapping[str, str] = field(default_factory=dict)
    close_egress: bool = False
    accounting: Accounting = field(default_factory=Accounting)

    @property
    def pod(self) -> tuple[str, str] | None:
        """The name and uid of the operator's pod; None if the uid is not known."""
        return (self.identity, self.pod_uid) if self.pod_uid else None

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Self:
        def needed(name: str, what: str) -> str:
            value = environment.get(name, "")
            if not value:
                raise SettingsError(f"{name} is not set: it must be {what}")
            return value

        return cls(
            namespace=needed("POD_NAMESPACE", "the namespace that the operator runs in"),
            identity=needed("POD_NAME", "the name of the operator's pod"),
            appliance_image=needed("APPLIANCE_IMAGE", "the image of appliances whose pool names none"),
            image_pull_policy=environment.get("APPLIANCE_IMAGE_PULL_POLICY", "IfNotPresent"),
            token_file=Path(file) if (file := environment.get("REMOTEGPU_TOKEN_FILE")) else None,
            pod_uid=environment.get("POD_UID", ""),
            ca_generation=environment.get("REMOTEGPU_CA_GENERATION", "1"),
            ca_secret=environment.get("REMOTEGPU_CA_SECRET", ""),
            metrics_from=json.loads(environment.get("REMOTEGPU_METRICS_FROM", "{}")),
            close_egress=environment.get("REMOTEGPU_CLOSE_EGRESS") == "true",
            accounting=Accounting(
                Retention(
                    datetime.timedelta(days=int(environment.get("REMOTEGPU_USAGE_CLAIM_DAYS", "30"))),
                    datetime.timedelta(days=int(environment.get("REMOTEGPU_USAGE_DAYS", "400"))),
                ),
                environment.get("REMOTEGPU_USAGE_USER_LABEL", ""),
            ),
            http_port=int(environment.get("REMOTEGPU_HTTP_PORT", "8080")),
            dashboard_port=int(port) if (port := environment.get("REMOTEGPU_DASHBOARD_PORT")) else None,
        )
