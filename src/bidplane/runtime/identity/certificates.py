"""The installation's own certificate authority, and the certificate its servers show."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CA_DAYS = 3650
_SERVER_DAYS = 397  # the longest that strict clients take
_RENEW_DAYS = 30


class Certificates(msgspec.Struct, frozen=True):
    """The paths of the certificates and of the server's key."""

    ca: Path
    certificate: Path
    key: Path


def ensure(folder: Path, *, hosts: list[str], now: float) -> Certificates:
    """Return the certificates in `folder`, created if missing, renewed if old."""
    files = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    ca_key = folder / "ca.key"
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    if not _is_pair(files.ca, ca_key):
        _make_ca(files.ca, ca_key, moment)
    if not _is_valid(files, hosts, moment):
        _make_server(files, ca_key, hosts, moment)
    return files


def _make_ca(ca: Path, ca_key: Path, now: datetime.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("bidplane")
    certificate = (
        _builder(name, name, key, now, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_pair(ca_key, key, ca, certificate)


def _make_server(
    files: Certificates, ca_key: Path, hosts: list[str], now: datetime.datetime
) -> None:
    ca = x509.load_pem_x509_certificate(files.ca.read_bytes())
    signer = serialization.load_pem_private_key(ca_key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_name(hosts[0]), ca.subject, key, now, _SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_names(hosts)), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
        .sign(signer, hashes.SHA256())
    )
    _write_pair(files.key, key, files.certificate, certificate)


def _is_valid(files: Certificates, hosts: list[str], now: datetime.datetime) -> bool:
    if not _is_pair(files.certificate, files.key):
        return False
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(files.ca.read_bytes()))
    except (ValueError, InvalidSignature):
        return False  # of an authority that was lost
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    is_fresh = certificate.not_valid_after_utc - now > datetime.timedelta(days=_RENEW_DAYS)
    return is_fresh and set(names) == set(_names(hosts))


def _is_pair(certificate: Path, key: Path) -> bool:
    """Return whether certificate and key exist and match: a crash may have come between them."""
    try:
        certificate_key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
        private_key = serialization.load_pem_private_key(key.read_bytes(), None).public_key()
    except (OSError, ValueError):
        return False
    return certificate_key == private_key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of clients differ from ours.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(common_name: str) -> x509.Name:
    longest = 64  # clients read the other names; this one is for people
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:longest])])


def _names(hosts: list[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign,
        crl_sign=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_pair(
    key_file: Path,
    key: ec.EllipticCurvePrivateKey,
    certificate_file: Path,
    certificate: x509.Certificate,
) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(key_file, pem, mode=0o600)
    _write(certificate_file, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)


def _write(path: Path, content: bytes, *, mode: int) -> None:
    """Write the file whole or not at all."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=mode)
    temporary.write_bytes(content)
    temporary.replace(path)
