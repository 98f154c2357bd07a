"""The certificate authority and the certificates that it signs, stored in Secrets of the operator's namespace."""

import base64
import datetime
import logging
from collections.abc import Callable
from typing import Final

from remotegpu.api.kubernetes import MANAGER_LABEL
from remotegpu_operator.appliances.certificates import Authority, Pair, advance, leaf_is_good, new_authority, new_leaf
from remotegpu_operator.cluster.kube import Api, ApiError, Object, Resource

_log = logging.getLogger(__name__)

SECRETS: Final = Resource("v1", "secrets", "Secret")
WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"
)
CA_SECRET: Final = "remotegpu-ca"  # noqa: S105 (a Secret's name)
WEBHOOK_SECRET: Final = "remotegpu-webhook-tls"  # noqa: S105 (a Secret's name)
WEBHOOK_NAME: Final = "remotegpu"

Clock = Callable[[], datetime.datetime]


def now_utc() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


class CertificateAuthority:
    """Loads, creates and renews the certificate authority and the webhook's certificate.

    `given` is the name of a Secret with an authority from another provider such as cert-manager; empty for none.
    Changing `generation` replaces an authority of our own.
    """

    def __init__(self, api: Api, namespace: str, *, generation: str, given: str, clock: Clock = now_utc) -> None:
        self._api = api
        self._namespace = namespace
        self._generation = generation
        self._given = given
        self._clock = clock
        self._authority: Authority | None = None
        self._webhook = ""

    @property
    def bundle(self) -> str:
        return self._authority.bundle if self._authority else ""

    @property
    def certificates(self) -> dict[str, str]:
        """The authority's and the webhook's certificates, by the name of the Secret."""
        found = {
            CA_SECRET: self._authority.signer.certificate if self._authority else "",
            WEBHOOK_SECRET: self._webhook,
        }
        return {name: certificate for name, certificate in found.items() if certificate}

    async def refresh(self, leaves: list[str]) -> None:
        """Loads or creates the authority, and takes a step of its rotation if one is due.

        Also renews the webhook's certificate if needed. `leaves` are the certificates of appliances. After an exception
        the previous authority stays in use. Raises AuthorityError if the Secret `given` is incomplete, and the errors
        of `Api`.
        """
        now = self._clock()
        stored = await self._get(CA_SECRET)
        if stored is not None:
            self._authority = _read(stored)
        given = await self._given_pair() if self._given else None
        if stored is None:
            found = Authority(given or new_authority(now), self._generation, now)
            await self._api.create(SECRETS, self._namespace, self._secret(CA_SECRET, _written(found), "Opaque"))
            _log.info("a certificate authority was made")
        else:
            assert self._authority is not None
            known = self._authority
            webhook = await self._get(WEBHOOK_SECRET)
            everything = leaves + ([_data(webhook)["tls.crt"]] if webhook else [])
            found = advance(known, now, generation=self._generation, leaves=everything, given=given)
            if found != known:
                await self._rewrite(stored, _written(found))
                _log.info("the certificate authority took a step: %s", _step(found))
        self._authority = found
        await self._keep_webhook()

    def leaf(self, present: Object | None, name: str) -> Pair | None:
        """Returns a new certificate for server `name`, or None if the certificate in Secret `present` is still good."""
        return self._leaf(present, (name,))

    def _leaf(self, present: Object | None, names: tuple[str, ...]) -> Pair | None:
        assert self._authority is not None
        now = self._clock()
        if present is not None and leaf_is_good(_data(present).get("tls.crt", ""), self._authority.signer, names, now):
            return None
        return new_leaf(self._authority.signer, names, now)

    async def _keep_webhook(self) -> None:
        names = tuple(f"remotegpu-webhook.{self._namespace}.svc{domain}" for domain in ("", ".cluster.local"))
        present = await self._get(WEBHOOK_SECRET)
        self._webhook = certificate_of(present) if present else ""
        if (pair := self._leaf(present, names)) is not None:
            data = {"tls.crt": pair.certificate, "tls.key": pair.key}
            self._webhook = pair.certificate
            if present is None:
                body = self._secret(WEBHOOK_SECRET, data, "kubernetes.io/tls")
                await self._api.create(SECRETS, self._namespace, body)
            else:
                await self._rewrite(present, data)
        try:
            configuration = await self._api.get(WEBHOOKS, None, WEBHOOK_NAME)
        except ApiError as error:
            if error.gone:
                return
            raise
        bundle = base64.b64encode(self.bundle.encode()).decode()
        entries = configuration.get("webhooks") or []
        if any(entry["clientConfig"].get("caBundle") != bundle for entry in entries):
            for entry in entries:
                entry["clientConfig"]["caBundle"] = bundle
            version = configuration["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "webhooks": entries}
            await self._api.patch(WEBHOOKS, None, WEBHOOK_NAME, body)

    async def _given_pair(self) -> Pair:
        secret = await self._get(self._given)
        data = _data(secret) if secret else {}
        if "tls.crt" not in data or "tls.key" not in data:
            raise AuthorityError(
                f"the Secret {self._given} in namespace {self._namespace} has no tls.crt and tls.key: "
                "let cert-manager write a CA certificate there, or leave the value empty for a CA of our own"
            )
        return Pair(data["tls.crt"], data["tls.key"])

    async def _get(self, name: str) -> Object | None:
        try:
            return await self._api.get(SECRETS, self._namespace, name)
        except ApiError as error:
            if error.gone:
                return None
            raise

    async def _rewrite(self, stored: Object, data: dict[str, str]) -> None:
        metadata = stored["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "data": _encoded(data)}
        await self._api.patch(SECRETS, self._namespace, metadata["name"], body)

    def _secret(self, name: str, data: dict[str, str], kind: str) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": kind,
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "labels": {MANAGER_LABEL: "remotegpu-operator"},
            },
            "data": _encoded(data),
        }


class AuthorityError(Exception):
    """The Secret with another provider's authority is incomplete. The message names the Secret and the missing keys."""


def certificate_of(secret: Object) -> str:
    return _data(secret).get("tls.crt", "")


def _encoded(data: dict[str, str]) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}


def _data(secret: Object) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}


def _written(authority: Authority) -> dict[str, str]:
    return {
        "ca.crt": authority.signer.certificate,
        "ca.key": authority.signer.key,
        "generation": authority.generation,
        "since": authority.since.isoformat(),
        "next.crt": authority.next.certificate if authority.next else "",
        "next.key": authority.next.key if authority.next else "",
        "next-generation": authority.next_generation,
        "previous.crt": authority.previous,
        # For clients, which check our certificates against it.
        "bundle.crt": authority.bundle,
    }


def _read(secret: Object) -> Authority:
    data = _data(secret)
    return Authority(
        signer=Pair(data["ca.crt"], data["ca.key"]),
        generation=data["generation"],
        since=datetime.datetime.fromisoformat(data["since"]),
        next=Pair(data["next.crt"], data["next.key"]) if data.get("next.crt") else None,
        next_generation=data.get("next-generation", ""),
        previous=data.get("previous.crt", ""),
    )


def _step(authority: Authority) -> str:
    if authority.next is not None:
        return "a new one is known everywhere from now on, and signs later"
    if authority.previous:
        return "the new one signs, the old one is still believed"
    return "the old one is no longer believed"
