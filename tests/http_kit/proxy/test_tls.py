"""HTTPS by the host's name: the right certificate, renewal, and files that cannot be used."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import shutil
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bidplane.errors import UserError
from bidplane.http.proxy.certificates import CertificateFolder, check
from bidplane.http.proxy.server import ClientLimits
from bidplane.http.server.accepting import Bounds

from .harness import proxied, run

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


def issue(folder: Path, file: str, *hosts: str, days: int = 3650, password: bytes = b"") -> str:
    """Write a pair that signs itself; return its serial number in hexadecimal."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, file)])
    names: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address(h)) if h[0].isdigit() else x509.DNSName(h)
        for h in hosts
    ]
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(days=365))
        .not_valid_after(NOW + datetime.timedelta(days=days))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    (folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{file}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password)
            if password
            else serialization.NoEncryption(),
        )
    )
    return f"{certificate.serial_number:X}"


def client(*, alpn: tuple[str, ...] = ("h2", "http/1.1")) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(alpn)
    return context


async def shown(port: int, host: str | None) -> str:
    """Return the serial number of the certificate that a client of a host is shown."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=client(), server_hostname=host or ""
    )
    connection = writer.get_extra_info("ssl_object")
    assert connection.selected_alpn_protocol() == "http/1.1"
    der = connection.getpeercert(binary_form=True)
    writer.transport.abort()
    return f"{x509.load_der_x509_certificate(der).serial_number:X}"


async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    HEADS.append(await reader.readuntil(b"\r\n\r\n"))
    writer.write(OK)


HEADS: list[bytes] = []
# uvloop closes the connection of a handshake that failed, without the alert.
REFUSED = (ssl.SSLError, ConnectionError)


def test_a_client_gets_the_certificate_of_the_host_it_names(tmp_path: Path) -> None:
    shop = issue(tmp_path, "shop", "shop.example.com", "www.example.com")
    wild = issue(tmp_path / "live", "tls", "*.alice.example.com")
    default = issue(tmp_path, "default", "localhost", "127.0.0.1")
    certificates = CertificateFolder(tmp_path)

    async def story() -> None:
        async with proxied(answer_once, tls=certificates.context) as setup:
            for host, serial in {
                "shop.example.com": shop,
                "WWW.example.com": shop,
                "web.alice.example.com": wild,
                "a.web.alice.example.com": default,  # a wildcard is one label
                "alice.example.com": default,
                "other.org": default,
                None: default,
            }.items():
                assert await shown(setup.proxy, host) == serial, host

    run(story())


def test_a_host_without_a_certificate_is_refused_by_name(tmp_path: Path) -> None:
    issue(tmp_path, "shop", "shop.example.com")
    certificates = CertificateFolder(tmp_path)

    async def story() -> None:
        async with proxied(answer_once, tls=certificates.context) as setup:
            for host in ("other.org", None):
                with pytest.raises(REFUSED):
                    await shown(setup.proxy, host)
            assert setup.server.site.gate._total == 0

    run(story())


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_verifies_it_and_the_backend_hears_of_https(tmp_path: Path) -> None:
    issue(tmp_path, "shop", "shop.example.com")
    certificates = CertificateFolder(tmp_path)

    async def story() -> None:
        async with proxied(answer_once, tls=certificates.context) as setup:
            curl = await asyncio.create_subprocess_exec(
                *("curl", "-sS", "--http2", "--cacert", str(tmp_path / "shop.crt")),
                *("-H", "X-Forwarded-Proto: http", "--data-binary", "@-"),
                *("--resolve", f"shop.example.com:{setup.proxy}:127.0.0.1"),
                f"https://shop.example.com:{setup.proxy}/",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await curl.communicate(b"x" * 300_000)
            assert output == b"ok"
            assert b"\r\nX-Forwarded-Proto: https\r\n" in HEADS[-1]

    run(story())


def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(tmp_path: Path) -> None:
    first = issue(tmp_path, "shop", "shop.example.com")
    other = issue(tmp_path, "other", "other.example.com")
    certificates = CertificateFolder(tmp_path)

    async def story() -> None:
        async with proxied(answer_once, tls=certificates.context) as setup:
            assert not certificates.read()
            assert await shown(setup.proxy, "shop.example.com") == first
            key = (tmp_path / "shop.key").read_bytes()
            second = issue(tmp_path, "shop", "shop.example.com")
            new_key = (tmp_path / "shop.key").read_bytes()
            (tmp_path / "shop.key").write_bytes(key)  # a renewal that is half written
            assert certificates.read()
            assert "is not that of" in certificates.notes(NOW)[0]
            assert await shown(setup.proxy, "shop.example.com") == first
            (tmp_path / "shop.key").write_bytes(new_key)
            assert certificates.read()
            assert certificates.notes(NOW) == []
            assert await shown(setup.proxy, "shop.example.com") == second
            assert await shown(setup.proxy, "other.example.com") == other
            (tmp_path / "other.crt").unlink()
            assert certificates.read()
            with pytest.raises(REFUSED):
                await shown(setup.proxy, "other.example.com")

    run(story())


def test_of_two_certificates_for_a_host_the_one_that_lasts_longer_is_shown(tmp_path: Path) -> None:
    issue(tmp_path, "a", "shop.example.com", days=10)
    later = issue(tmp_path, "b", "shop.example.com", days=90)
    issue(tmp_path, "c", "shop.example.com", days=30)
    certificates = CertificateFolder(tmp_path)
    chosen = certificates.find("shop.example.com")
    assert chosen is not None
    assert chosen.path.name == "b.crt", later
    notes = certificates.notes(NOW + datetime.timedelta(days=31))
    assert [note.split(" expired")[0].rpartition("/")[2] for note in notes] == ["a.crt", "c.crt"]


def test_certificates_as_certbot_writes_them(tmp_path: Path) -> None:
    issue(tmp_path / "archive", "one", "shop.example.com")
    live = tmp_path / "live" / "shop.example.com"
    live.mkdir(parents=True)
    (live / "fullchain.pem").symlink_to(tmp_path / "archive" / "one.crt")
    (live / "privkey.pem").symlink_to(tmp_path / "archive" / "one.key")
    (live / "chain.pem").write_text("not read")
    certificates = CertificateFolder(tmp_path / "live")
    assert certificates.hosts == ("shop.example.com",)
    assert certificates.problems == ()


def _no_key(folder: Path) -> None:
    issue(folder, "shop", "shop.example.com")
    (folder / "shop.key").unlink()


def _other_key(folder: Path) -> None:
    issue(folder, "shop", "shop.example.com")
    issue(folder / "x", "shop", "shop.example.com")
    os.replace(folder / "x" / "shop.key", folder / "shop.key")
    (folder / "x" / "shop.crt").unlink()


def _garbage(folder: Path) -> None:
    issue(folder, "shop", "shop.example.com")
    (folder / "shop.crt").write_text("certainly not")


BAD = {
    "there is no folder": (lambda folder: None, "cannot read the certificates in .*No such file"),
    "it is empty": (lambda folder: folder.mkdir(), "has no certificates: put them there as NAME"),
    "no key": (_no_key, r"shop\.crt has no key: put it at .*shop\.key"),
    "another key": (_other_key, r"shop\.key is not that of .*shop\.crt"),
    "no certificate": (_garbage, r"shop\.crt is not a certificate in PEM"),
    "a passphrase": (
        lambda folder: issue(folder, "shop", "a.b", password=b"secret"),
        "is encrypted: store it without a passphrase",
    ),
    "no names": (lambda folder: issue(folder, "shop"), "names no host: it needs a subjectAltName"),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_cannot_be_used_are_named(case: str, tmp_path: Path) -> None:
    make, message = BAD[case]
    make(tmp_path / "certs")
    with pytest.raises(UserError, match=message):
        check(tmp_path / "certs")


def test_handshakes_are_counted_and_bounded(tmp_path: Path) -> None:
    issue(tmp_path, "default", "localhost")
    certificates = CertificateFolder(tmp_path)
    bounds = Bounds(total=3, per_address=3, per_loopback_address=3)

    async def story() -> None:
        async with proxied(
            answer_once, tls=certificates.context, bounds=bounds, limits=ClientLimits()
        ) as setup:
            silent = [socket.create_connection(("127.0.0.1", setup.proxy)) for _ in range(3)]
            while setup.server.site.gate._total < 3:
                await asyncio.sleep(0.005)
            with pytest.raises(REFUSED):
                await shown(setup.proxy, "localhost")
            for connection in silent:
                connection.close()
            while setup.server.site.gate._total:
                await asyncio.sleep(0.005)
            assert await shown(setup.proxy, "localhost")
            while setup.server.site.gate._total:  # counted once, and once no more
                await asyncio.sleep(0.005)

    run(story())
