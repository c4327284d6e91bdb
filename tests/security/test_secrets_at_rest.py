"""Secrets are not in the files of a plane, once its owner has them encrypted."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bidplane.api.kinds import CONFIG_MAP, SECRET
from bidplane.cli.operate.up import Running
from bidplane.errors import ApiError, UserError
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.plane.planes import check_keys
from bidplane.runtime.identity.credentials import Tokens
from bidplane.runtime.installation import Installation
from bidplane.storage import sealing
from bidplane.storage.sealing import Sealing

VALUE = "c3dvcmRmaXNo-swordfish-c3dvcmRmaXNo"
DATA = base64.b64encode(VALUE.encode()).decode()
KEY, OTHER = base64.b64encode(b"1" * 32).decode(), base64.b64encode(b"2" * 32).decode()
IDENTITY = "  - identity: {}\n"


def aesgcm(name: str = "key1", key: str = KEY, cipher: str = "aesgcm") -> str:
    return f"  - {cipher}: {{keys: [{{name: {name}, secret: {key}}}]}}\n"


def configured(folder: Path, *providers: str, resources: str = "[secrets]") -> Sealing:
    path = folder / "encryption.yaml"
    path.write_text(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"
        f"- resources: {resources}\n  providers:\n{''.join(providers)}"
    )
    return sealing.load(path)


def run(
    folder: Path, seal: Sealing | None, story: Callable[[KubeClient], Awaitable[Any]], **more: Any
) -> Any:
    """Open the plane `trainer`, as a server does, and close it after the story."""

    async def whole() -> Any:
        planes = Planes(
            folder / "planes", clock=SystemClock(), tokens=Tokens(b"k"), sealing=seal, **more
        )
        try:
            await planes.create("trainer")
            return await story(planes.client("trainer"))
        finally:
            await planes.close()

    return asyncio.run(whole())


def writes(name: str) -> Callable[[KubeClient], Awaitable[Any]]:
    secret = {"metadata": {"name": name}, "data": {"password": DATA}}
    return lambda client: client.create(SECRET, secret, "default")


def reads(name: str) -> Callable[[KubeClient], Awaitable[str]]:
    async def read(client: KubeClient) -> str:
        return str((await client.get(SECRET, name, "default"))["data"]["password"])

    return read


def on_disk(folder: Path, text: str = DATA) -> list[str]:
    """The files below `folder` in which `text` is found."""
    files = [path for path in (folder / "planes").rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if text.encode() in path.read_bytes()]


def test_without_a_configuration_it_is_there(tmp_path: Path) -> None:
    run(tmp_path, None, writes("a"))
    assert on_disk(tmp_path), "what the other tests look for can be found"


@pytest.mark.parametrize("cipher", ["aesgcm", "chacha20poly1305"])
def test_a_secret_is_in_no_file_and_can_be_read(tmp_path: Path, cipher: str) -> None:
    seal = configured(tmp_path, aesgcm(cipher=cipher), IDENTITY)
    run(tmp_path, seal, writes("a"))
    assert on_disk(tmp_path) == []
    assert run(tmp_path, seal, reads("a")) == DATA
    assert on_disk(tmp_path, "kube-system"), "other kinds are as they were"


def test_what_was_there_is_read_and_encrypted_when_it_is_written(tmp_path: Path) -> None:
    run(tmp_path, None, writes("a"))
    seal = configured(tmp_path, aesgcm(), IDENTITY)
    assert run(tmp_path, seal, reads("a")) == DATA

    async def rewrite(client: KubeClient) -> None:
        await client.patch(SECRET, "a", {"metadata": {"labels": {"x": "y"}}}, "default")

    run(tmp_path, seal, rewrite)
    assert run(tmp_path, configured(tmp_path, aesgcm(), IDENTITY), reads("a")) == DATA
    strict = configured(tmp_path, aesgcm())
    with pytest.raises(ApiError, match="is not encrypted"):
        run(tmp_path, strict, reads("a"))  # its first state is in the log still


def test_identity_first_writes_plain_text_again(tmp_path: Path) -> None:
    run(tmp_path, configured(tmp_path, aesgcm(), IDENTITY), writes("a"))
    back = configured(tmp_path, IDENTITY, aesgcm())
    assert run(tmp_path, back, reads("a")) == DATA
    run(tmp_path, back, writes("b"))
    assert on_disk(tmp_path)


def test_keys_are_changed_by_putting_the_new_one_first(tmp_path: Path) -> None:
    run(tmp_path, configured(tmp_path, aesgcm()), writes("a"))
    both = configured(tmp_path, aesgcm("key2", OTHER), aesgcm())
    assert run(tmp_path, both, reads("a")) == DATA
    run(tmp_path, both, writes("b"))
    with pytest.raises(ApiError, match="key 'key1', which the encryption configuration does not"):
        run(tmp_path, configured(tmp_path, aesgcm("key2", OTHER)), reads("b"))


def test_a_lost_key_is_named(tmp_path: Path) -> None:
    run(tmp_path, configured(tmp_path, aesgcm()), writes("a"))
    for seal in (None, configured(tmp_path, aesgcm("key2", OTHER), IDENTITY)):
        with pytest.raises(ApiError, match=r"'trainer'.*secrets/default/a.*'key1'") as caught:
            run(tmp_path, seal, reads("a"))
        assert caught.value.code == 503
        with pytest.raises(UserError, match=r"'key1'.*put it back, with --encryption-config"):
            check_keys(tmp_path / "planes", seal or Sealing())
    wrong = configured(tmp_path, aesgcm("key1", OTHER))
    with pytest.raises(ApiError, match="another key of that name, or the data are damaged"):
        run(tmp_path, wrong, reads("a"))
    assert run(tmp_path, configured(tmp_path, aesgcm()), reads("a")) == DATA, "nothing was lost"


def test_a_value_that_was_copied_elsewhere_is_not_opened(tmp_path: Path) -> None:
    seal = configured(tmp_path, aesgcm())
    sealed = seal.seal("secrets/default/a", b"{}")
    assert seal.open("secrets/default/a", sealed) == b"{}"
    with pytest.raises(UserError, match="cannot be decrypted"):
        seal.open("secrets/default/b", sealed)


def test_any_kind_can_be_encrypted(tmp_path: Path) -> None:
    seal = configured(tmp_path, aesgcm(), resources="[configmaps, secrets]")
    made = {"metadata": {"name": "a"}, "data": {"x": VALUE}}
    run(tmp_path, seal, lambda client: client.create(CONFIG_MAP, made, "default"))
    assert on_disk(tmp_path, VALUE) == []


def test_a_key_may_come_from_a_file_or_a_command(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    program = f'[{sys.executable}, "-c", "print({KEY!r})"]'
    by_file = f"  - aesgcm: {{keys: [{{name: key1, file: {tmp_path / 'key'}}}]}}\n"
    by_command = f"  - aesgcm: {{keys: [{{name: key1, command: {program}}}]}}\n"
    sealed = configured(tmp_path, by_file).seal("secrets/a", b"{}")
    assert configured(tmp_path, by_command).open("secrets/a", sealed) == b"{}"


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("  - secretbox: {keys: []}\n", "no provider 'secretbox': use aesgcm"),
        (aesgcm(key="c2hvcnQ="), "has 5 bytes, and aesgcm needs 16 or 24 or 32"),
        (aesgcm(key="'?'"), "is not base64"),
        ("  - aesgcm: {keys: [{name: a}]}\n", "needs one of secret, file and command"),
        ("  - aesgcm: {keys: [{name: a, file: /none}]}\n", "cannot read /none"),
        ("  - aesgcm: {keys: [{name: a, command: [/none]}]}\n", "its command failed"),
        ("  - aesgcm: {key: 1}\n", "missing required field `keys`|unknown field"),
        ("    []\n", "a group has no providers"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(
    tmp_path: Path, provider: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        configured(tmp_path, provider)


def test_the_configuration_is_kept_for_the_next_start(tmp_path: Path) -> None:
    configured(tmp_path, aesgcm(), IDENTITY)
    where = Installation(tmp_path / "data")
    Running(where, port=0, encryption=tmp_path / "encryption.yaml")
    assert where.encryption.stat().st_mode & 0o777 == 0o600
    assert where.sealing().seal("secrets/a", b"{}").startswith(b"k8s:enc:aesgcm:v1:key1:")
