"""An installation is a folder, for one Bidplane at a time."""

import subprocess
import sys

import pytest

from bidplane.errors import UserError
from bidplane.runtime.installation import Address, Installation

NOW = 1_700_000_000.0


@pytest.fixture
def where(tmp_path):
    installation = Installation(tmp_path / "data")
    installation.create()
    return installation


def started(where, host_uid="h1"):
    where.write_address(Address(url="https://a", exchange_url="https://b", host_uid=host_uid))


def test_creating_it_twice_is_creating_it_once(where):
    where.create()
    assert sorted(path.name for path in where.folder.iterdir()) == ["logs", "planes"]
    assert where.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("blocked", ["data", "data/planes", "data/logs"])
def test_a_directory_that_cannot_be_written_is_one_clear_line(tmp_path, blocked):
    """A file is in the way: permissions would not stop root."""
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("")
    with pytest.raises(UserError, match=r"cannot write to the data directory .*--data") as caught:
        Installation(tmp_path / "data").create()
    assert "\n" not in str(caught.value)


def test_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        Installation(tmp_path / "file" / "data").create()


def test_a_lock_that_cannot_be_opened_is_one_clear_line(where):
    (where.folder / "lock").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        where.lock()


HOLD = """
import sys, pathlib
from bidplane.runtime.installation import Installation
where = Installation(pathlib.Path(sys.argv[1]))
where.lock()
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_holds_it_until_it_ends_however_it_ends(where):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(where.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "held\n"
    try:
        with pytest.raises(UserError, match=f"in use .*process {holder.pid}") as caught:
            where.lock()
        assert "\n" not in str(caught.value)
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    where.lock()


def test_the_address_is_what_was_written_last(where):
    with pytest.raises(UserError, match="no Bidplane in"):
        where.address()
    started(where, "h1")
    started(where, "h2")
    assert where.address().host_uid == "h2"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"url": 3}'])
def test_an_address_that_cannot_be_read_is_one_clear_line(where, content):
    (where.folder / "installation.json").write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        where.address()


def test_an_owners_token_is_kept_while_it_is_fresh(where):
    started(where)
    token = where.owner_token(user="me", now=NOW)
    assert where.owner_token(user="me", now=NOW + 1700) == token
    assert where.owner_token(user="you", now=NOW) != token
    later = where.owner_token(user="me", now=NOW + 1900)
    assert later != token
    identity = where.tokens().verify(later, now=NOW + 1900)
    assert identity.is_owner
    assert (identity.user, identity.uid, identity.expires) == ("me", "h1", NOW + 1900 + 3600)


def test_a_token_made_before_the_host_plane_was_is_not_kept(where):
    """A process that started first would be refused for half an hour."""
    started(where, host_uid="")
    where.owner_token(user="me", now=NOW)
    started(where, host_uid="h1")
    token = where.owner_token(user="me", now=NOW + 1)
    assert where.tokens().verify(token, now=NOW + 1).uid == "h1"


def test_a_folder_that_was_open_to_others_is_closed(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    Installation(folder).create()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_every_folder_with_secrets_is_the_owners_alone(tmp_path):
    folder = tmp_path / "data"
    for inside in ("planes/lab", "logs"):
        (folder / inside).mkdir(parents=True)
    folders = [folder, folder / "planes", folder / "planes" / "lab", folder / "logs"]
    for path in folders:
        path.chmod(0o755)
    Installation(folder).create()
    assert [path.stat().st_mode & 0o777 for path in folders] == [0o700] * 4
