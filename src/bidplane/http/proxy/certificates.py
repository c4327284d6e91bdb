"""
The certificates of a listener: a client names a host (SNI), and is shown the certificate for it.

They are pairs of PEM files in a folder, or in folders directly below it: NAME.crt with NAME.key,
which is also what a mounted TLS Secret looks like, or certbot's fullchain.pem with privkey.pem. The
hosts that a certificate serves are those written in it. `default.crt` is for clients that name no
host, or one that no certificate has; without it they are refused.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterable
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from bidplane.errors import UserError

Signature = tuple[tuple[str, int, int, int], ...]  # files with time, size and inode

PROTOCOLS = ("http/1.1",)
_DEFAULT = "default"
_FILES_COUNT = 10_000  # in a folder of certificates; more are not read


class CertificateProblem(Exception):
    """A pair of files that cannot be used; the text names the file and the remedy."""


class HostCertificate(msgspec.Struct, frozen=True):
    """A certificate with its key, and the hosts that it is for."""

    path: Path
    context: ssl.SSLContext
    hosts: tuple[str, ...]  # lower case; `*.example.com` is any one label
    ends: datetime.datetime

    @property
    def is_default(self) -> bool:
        return self.path.stem == _DEFAULT or self.path.parent.name == _DEFAULT


def check(folder: Path) -> None:
    """Raise `UserError` if certificates of a folder cannot be used, or if there are none."""
    try:
        certificates = CertificateFolder(folder)
    except OSError as error:
        raise UserError(f"cannot read the certificates in {folder}: {error.strerror}") from None
    if certificates.problems:
        raise UserError("; ".join(certificates.problems))
    if not certificates.hosts:
        raise UserError(
            f"{folder} has no certificates: put them there as NAME.crt and NAME.key, in PEM"
        )


class CertificateFolder:
    """
    The certificates of a folder, as they are now.

    `context` stays the same when they are read again, so a listener need not know.
    """

    def __init__(self, folder: Path) -> None:
        """Raises `OSError` if the folder cannot be read; `problems` has its bad files."""
        self._folder = folder
        self.context = _new_context()
        self.context.sni_callback = self._choose
        self._signature: Signature = ()
        self._by_path: dict[Path, HostCertificate] = {}
        self._by_host: dict[str, HostCertificate] = {}
        self._default: HostCertificate | None = None
        self.problems: tuple[str, ...] = ()
        self.read()

    def __repr__(self) -> str:
        return f"<CertificateFolder {self._folder} {', '.join(self.hosts)}>"

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(self._by_host))

    def notes(self, now: datetime.datetime) -> list[str]:
        """Return what somebody has to do: files that cannot be used, certificates that expired."""
        expired = [
            f"the certificate {pair.path} expired at {pair.ends:%Y-%m-%d %H:%M} UTC: renew it"
            for pair in self._by_path.values()
            if pair.ends < now
        ]
        return [*self.problems, *expired]

    def read(self) -> bool:
        """
        Read the files again if one of them changed; return True if so.

        A pair that cannot be used any more stays as it was: a renewal may be half written.
        """
        signature = _signature(self._folder)
        if signature == self._signature:
            return False
        pairs: dict[Path, HostCertificate] = {}
        problems = []
        for certificate, key in _pairs(Path(path) for path, *_ in signature):
            try:
                pairs[certificate] = _load(certificate, key)
            except CertificateProblem as problem:
                problems.append(str(problem))
                if certificate in self._by_path:
                    pairs[certificate] = self._by_path[certificate]
        by_host: dict[str, HostCertificate] = {}
        for pair in sorted(pairs.values(), key=lambda pair: pair.ends):  # the newest one wins
            by_host.update(dict.fromkeys(pair.hosts, pair))
        self._by_path, self._by_host = pairs, by_host
        self._default = next((pair for pair in pairs.values() if pair.is_default), None)
        self._signature, self.problems = signature, tuple(problems)
        return True

    def find(self, host: str | None) -> HostCertificate | None:
        """Return the certificate for a host, or the default one."""
        name = (host or "").lower().rstrip(".")
        _, dot, parent = name.partition(".")
        return self._by_host.get(name) or self._by_host.get(f"*{dot}{parent}") or self._default

    def _choose(
        self, connection: ssl.SSLObject, host: str | None, context: ssl.SSLContext
    ) -> int | None:
        pair = self.find(host)
        if pair is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = pair.context
        return None


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(PROTOCOLS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _signature(folder: Path) -> Signature:
    """Return each file with its time, size and inode; a link counts as the file it leads to."""
    entries = []
    for path in sorted(_files(folder)):
        status = path.stat()
        entries.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(entries)


def _files(folder: Path) -> Iterable[Path]:
    """Return the PEM files of a folder and of those below it; hidden ones are a mount's own."""
    count = 0
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        for path in entry.iterdir() if entry.is_dir() else (entry,):
            if path.suffix in (".crt", ".key", ".pem") and path.is_file():
                count += 1
                if count > _FILES_COUNT:
                    return
                yield path


def _pairs(paths: Iterable[Path]) -> list[tuple[Path, Path]]:
    """Return each certificate with the path of its key."""
    pairs = []
    for path in paths:
        if path.suffix == ".crt":
            pairs.append((path, path.with_suffix(".key")))
        elif path.name == "fullchain.pem":
            pairs.append((path, path.with_name("privkey.pem")))
    return pairs


def _load(certificate: Path, key: Path) -> HostCertificate:
    try:
        chain = x509.load_pem_x509_certificates(certificate.read_bytes())
    except ValueError:
        raise CertificateProblem(f"{certificate} is not a certificate in PEM") from None
    except OSError as error:
        raise CertificateProblem(f"cannot read {certificate}: {error.strerror}") from None
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except FileNotFoundError:
        raise CertificateProblem(f"{certificate} has no key: put it at {key}") from None
    except OSError as error:
        raise CertificateProblem(f"cannot read {key}: {error.strerror}") from None
    except TypeError:
        raise CertificateProblem(
            f"the key {key} is encrypted: store it without a passphrase (openssl pkey)"
        ) from None
    except ValueError:
        raise CertificateProblem(f"{key} is not a private key in PEM") from None
    first = chain[0]
    if first.public_key() != private.public_key():
        raise CertificateProblem(
            f"the key {key} is not that of {certificate}, whose first certificate must be the"
            " server's own"
        )
    hosts = _hosts(first)
    if not hosts:
        raise CertificateProblem(
            f"{certificate} names no host: it needs a subjectAltName of type DNS or IP"
        )
    context = _new_context()
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise CertificateProblem(f"{certificate} is refused by OpenSSL: {error}") from None
    return HostCertificate(certificate, context, hosts, first.not_valid_after_utc)


def _hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return tuple(name.lower() for name in [*names.get_values_for_type(x509.DNSName), *addresses])
