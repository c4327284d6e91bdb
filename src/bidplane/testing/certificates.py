"""
A throw-away certificate authority for one test cluster, valid for a day.

Independent of the product's own certificates on purpose: the reference must not depend on what it
is compared with.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = datetime.timedelta(days=1)
SKEW = datetime.timedelta(minutes=5)


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Write a new private key, readable by its owner only."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    # SEC 1, not PKCS 8: kube-apiserver accepts only that for keys that verify service accounts.
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return key


class Authority:
    """Signs certificates; `ca.crt` is the file to trust."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate_file = folder / "ca.crt"
        self._key = write_key(folder / "ca.key")
        self._name = _name("bidplane test cluster")
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(constraints, critical=True)
        self._sign(builder, self.certificate_file)

    def issue_server(self, name: str) -> tuple[Path, Path]:
        """A certificate for the loopback address and the names pods would use."""
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        names += [x509.DNSName(n) for n in ("localhost", "kubernetes.default.svc")]
        key = write_key(self.folder / f"{name}.key")
        builder = self._builder(_name(name), key.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return self._finish(builder, name, ExtendedKeyUsageOID.SERVER_AUTH)

    def issue_client(self, name: str, *, user: str, group: str | None = None) -> tuple[Path, Path]:
        """A certificate Kubernetes reads as `user` in `group`."""
        key = write_key(self.folder / f"{name}.key")
        builder = self._builder(_name(user, group), key.public_key())
        return self._finish(builder, name, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _finish(
        self, builder: x509.CertificateBuilder, name: str, usage: x509.ObjectIdentifier
    ) -> tuple[Path, Path]:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        certificate = self.folder / f"{name}.crt"
        self._sign(builder, certificate)
        return certificate, self.folder / f"{name}.key"

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + LIFE)
        )

    def _sign(self, builder: x509.CertificateBuilder, path: Path) -> None:
        certificate = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _name(common_name: str, organization: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)
