"""Certificates that clients accept, that renew, and that survive a crash between two files."""

import ipaddress
import socket
import ssl
import threading

import pytest
from cryptography import x509

from bidplane.runtime.identity.certificates import ensure

DAY = 86_400.0
HOSTS = ["127.0.0.1", "localhost"]


@pytest.fixture
def now():
    import time

    return time.time()


def handshake(files, name, ca=None):
    """What a client sees; raises what it raises."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    client = ssl.create_default_context(cafile=ca or files.ca)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    here, there = socket.socketpair()

    def answer():
        try:
            server.wrap_socket(there, server_side=True).close()
        except (ssl.SSLError, OSError):
            there.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname=name) as session:
            return session.getpeercert()
    finally:
        here.close()
        thread.join()


@pytest.mark.parametrize("name", HOSTS)
def test_a_strict_client_accepts_every_host_it_was_made_for(tmp_path, now, name):
    assert handshake(ensure(tmp_path, hosts=HOSTS, now=now), name)


def test_other_hosts_and_other_authorities_are_refused(tmp_path, now):
    files = ensure(tmp_path, hosts=HOSTS, now=now)
    (tmp_path / "other").mkdir()
    other = ensure(tmp_path / "other", hosts=HOSTS, now=now)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "example.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "localhost", ca=other.ca)


def test_what_is_good_is_kept(tmp_path, now):
    def contents():
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    ensure(tmp_path, hosts=HOSTS, now=now)
    before = contents()
    ensure(tmp_path, hosts=HOSTS, now=now + 300 * DAY)
    assert contents() == before
    assert set(before) == {"ca.crt", "ca.key", "server.crt", "server.key"}


def test_keys_are_for_their_owner_alone(tmp_path, now):
    ensure(tmp_path, hosts=HOSTS, now=now)
    for name in ("ca.key", "server.key"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_an_old_certificate_is_renewed_before_it_ends_by_the_same_authority(tmp_path, now):
    files = ensure(tmp_path, hosts=HOSTS, now=now - 380 * DAY)
    ca, old = files.ca.read_bytes(), files.certificate.read_bytes()
    ensure(tmp_path, hosts=HOSTS, now=now)
    assert files.ca.read_bytes() == ca, "clients have it"
    assert files.certificate.read_bytes() != old
    assert handshake(files, "localhost")
    shown = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    lasts = shown.not_valid_after_utc - shown.not_valid_before_utc
    assert lasts.days <= 398, "strict clients take no longer ones"


def test_other_hosts_make_another_certificate(tmp_path, now):
    files = ensure(tmp_path, hosts=HOSTS, now=now)
    ensure(tmp_path, hosts=["::1", "fleet.example.com"], now=now)
    assert handshake(files, "fleet.example.com")
    assert handshake(files, str(ipaddress.ip_address("::1")))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "localhost")


def test_a_long_host_name(tmp_path, now):
    host = "a" * 60 + ".example.com"
    assert handshake(ensure(tmp_path, hosts=[host], now=now), host)


@pytest.mark.parametrize("lost", ["ca.crt", "ca.key", "server.crt", "server.key"])
@pytest.mark.parametrize("how", ["removed", "cut short", "another's"])
def test_it_works_again_after_any_file_was_lost(tmp_path, now, lost, how):
    """As after a crash between two writes, or a restored backup."""
    files = ensure(tmp_path, hosts=HOSTS, now=now)
    if how == "removed":
        (tmp_path / lost).unlink()
    elif how == "cut short":
        (tmp_path / lost).write_bytes((tmp_path / lost).read_bytes()[:40])
    else:
        (tmp_path / "other").mkdir()
        ensure(tmp_path / "other", hosts=HOSTS, now=now)
        (tmp_path / "other" / lost).replace(tmp_path / lost)
    ensure(tmp_path, hosts=HOSTS, now=now)
    assert handshake(files, "localhost")
