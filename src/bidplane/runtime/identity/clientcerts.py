"""
Client certificates: a user of one plane, for as long as that plane lives.

CN is the user and O are its groups, as in Kubernetes. The plane and the uid it had are in the
certificate too, as a URI that only this installation writes: the certificate of a deleted plane
stays dead when another takes its name, and none opens a second plane.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import re
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bidplane.runtime.identity.credentials import Identity
from bidplane.runtime.identity.generations import Generations

LONGEST_SECONDS = 30 * 24 * 3600
_SKEW = datetime.timedelta(minutes=5)  # clocks of clients differ from ours
_URI = re.compile(r"bidplane:plane/([^/]+)/([^/]+)(?:/([0-9]{1,9}))?")


class InvalidCertificate(Exception):
    """The certificate names no user or no plane."""


class Pair(msgspec.Struct, frozen=True):
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


class Signer:
    """The signer of client certificates, with the installation's authority."""

    def __init__(self, ca: Path, key: Path, generations: Generations | None = None) -> None:
        self._generations = generations or Generations()
        self._ca = x509.load_pem_x509_certificate(ca.read_bytes())
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        self._key = loaded

    def pair(self, identity: Identity, *, now: float) -> Pair:
        """Return a new key, and a certificate of `identity` for it."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
        names.append(x509.NameAttribute(NameOID.COMMON_NAME, identity.user))
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
        signed = request.sign(key, hashes.SHA256())
        certificate = self.sign(
            signed, plane=identity.plane, uid=identity.uid, now=now, end=identity.expires
        )
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Pair(certificate, pem)

    def sign(
        self,
        request: x509.CertificateSigningRequest,
        *,
        plane: str,
        uid: str,
        now: float,
        end: float,
    ) -> bytes:
        """
        Return the requested certificate, valid in one plane until `end`, as PEM.

        Only the subject and the key of the request are used: its extensions, such as another
        plane's URI, are left out.
        """
        start = datetime.datetime.fromtimestamp(int(now), datetime.UTC)
        last = min(end, now + LONGEST_SECONDS, self._ca.not_valid_after_utc.timestamp())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        plane_uri = x509.UniformResourceIdentifier(
            f"bidplane:plane/{plane}/{uid}/{self._generations.of(uid)}"
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(self._ca.subject)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start - _SKEW)
            .not_valid_after(datetime.datetime.fromtimestamp(int(last), datetime.UTC))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_SIGNATURES_ONLY, critical=True)
            .add_extension(usage, critical=False)
            .add_extension(issuer, critical=False)
            .add_extension(x509.SubjectAlternativeName([plane_uri]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


_SIGNATURES_ONLY = x509.KeyUsage(
    digital_signature=True,
    key_encipherment=True,
    key_cert_sign=False,
    crl_sign=False,
    content_commitment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


@functools.lru_cache(1024)
def identity(certificate: bytes) -> Identity:
    """
    Return the identity in a certificate (DER); raise `InvalidCertificate`.

    The TLS server checks the signature, the caller checks the time.
    """
    try:
        parsed = x509.load_der_x509_certificate(certificate)
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise InvalidCertificate("the certificate is not for a plane") from error
    plane_uris = [
        _URI.fullmatch(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)
    ]
    if len(plane_uris) != 1 or plane_uris[0] is None:
        raise InvalidCertificate("the certificate is not for a plane")
    users = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not users:
        raise InvalidCertificate("the certificate names no user (CN)")
    groups = parsed.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return Identity(
        plane=plane_uris[0][1],
        uid=plane_uris[0][2],
        user=str(users[-1].value),
        groups=tuple(str(group.value) for group in groups),
        expires=int(parsed.not_valid_after_utc.timestamp()),
        generation=int(plane_uris[0][3] or 0),
    )


def fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()


def as_data(pem: bytes) -> str:
    """Return PEM as the base64 of a kubeconfig."""
    return base64.b64encode(pem).decode()
