"""Whom a node believes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from bidplane.errors import ApiError
from bidplane.node.auth import user_of_certificate
from bidplane.runtime.identity import certificates
from bidplane.runtime.identity.clientcerts import Signer
from bidplane.runtime.identity.credentials import HOST_PLANE, OWNERS, Identity

NOW = 1_800_000_000.0


def _certificate(folder: Path, plane: str) -> bytes:
    certificates.ensure(folder, hosts=["127.0.0.1"], now=NOW)
    signer = Signer(folder / "ca.crt", folder / "ca.key")
    who = Identity(plane=plane, uid="u", user="ann", groups=(OWNERS,), expires=int(NOW) + 60)
    pem = signer.pair(who, now=NOW).certificate
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def test_the_master_of_an_agents_plane_is_nobody_to_a_node(tmp_path: Path) -> None:
    with pytest.raises(ApiError) as refused:
        user_of_certificate(_certificate(tmp_path, "research"))
    assert refused.value.code == 403


def test_the_hosts_own_is_believed(tmp_path: Path) -> None:
    user = user_of_certificate(_certificate(tmp_path, HOST_PLANE))
    assert (user.name, OWNERS in user.groups) == ("ann", True)
