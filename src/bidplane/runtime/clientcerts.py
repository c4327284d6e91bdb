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

from bidplane.runtime.credentials import Identity

# Under this name a server puts the verified certificate (DER) into the `state` of a request.
CLIENT_CERTIFICATE = "client_certificate"
LONGEST_SECONDS = 30 * 24 * 3600
_SKEW = datetime.timedelta(minutes=5)  # clocks of clients differ from ours
_URI = re.compile(r"bidplane:plane/([^/]+)/([^/]+)")


class InvalidCertificate(Exception):
    """The certificate does not say whose it is, or for which plane."""


class Pair(msgspec.Struct, frozen=True):
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


class Signer:
    """Signs for clients with the installation's authority."""

    def __init__(self, ca: Path, key: Path) -> None:
        self._ca = x509.load_pem_x509_certificate(ca.read_bytes())
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        self._key = loaded

    def pair(self, identity: Identity, *, now: float) -> Pair:
        """A new key, and a certificate for it that says `identity`."""
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
        The certificate asked for, good in one plane until `end`, as PEM.

        Of the request only the subject and the key are taken: what else it asks to be said,
        another plane's URI among it, is left out.
        """
        moment = datetime.datetime.fromtimestamp(int(now), datetime.UTC)
        last = min(end, now + LONGEST_SECONDS, self._ca.not_valid_after_utc.timestamp())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        home = x509.UniformResourceIdentifier(f"bidplane:plane/{plane}/{uid}")
        certificate = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(self._ca.subject)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment - _SKEW)
            .not_valid_after(datetime.datetime.fromtimestamp(int(last), datetime.UTC))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_SIGNATURES_ONLY, critical=True)
            .add_extension(usage, critical=False)
            .add_extension(issuer, critical=False)
            .add_extension(x509.SubjectAlternativeName([home]), critical=False)
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
    Who a certificate (DER) speaks for; raises `InvalidCertificate`.

    That it was signed here is the TLS server's to check, that it has not ended is the caller's.
    """
    try:
        read = x509.load_der_x509_certificate(certificate)
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise InvalidCertificate("the certificate is not for a plane") from error
    homes = [
        _URI.fullmatch(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)
    ]
    if len(homes) != 1 or homes[0] is None:
        raise InvalidCertificate("the certificate is not for a plane")
    users = read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not users:
        raise InvalidCertificate("the certificate names no user (CN)")
    groups = read.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return Identity(
        plane=homes[0][1],
        uid=homes[0][2],
        user=str(users[-1].value),
        groups=tuple(str(group.value) for group in groups),
        expires=int(read.not_valid_after_utc.timestamp()),
    )


def fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()


def as_data(pem: bytes) -> str:
    """As a kubeconfig carries it."""
    return base64.b64encode(pem).decode()
