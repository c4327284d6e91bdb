"""Every pod of a node runs as a user of its own: never two as one."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.pods.environment import ConfigError
from bidplane.node.process.records import PodFolder, PodRecord
from bidplane.node.process.sandbox import users
from bidplane.node.process.sandbox.confinement import find_bubblewrap
from bidplane.node.process.sandbox.users import Users, first_free

from .processes import pids_with

# Few enough that many wish for the same user.
UIDS = st.integers(0, 9).map(lambda n: f"{n:08x}-0000-0000-0000-{n % 3:012x}")
STEPS = st.lists(st.tuples(st.sampled_from(["take", "release", "restart"]), UIDS), max_size=30)


@given(STEPS)
def test_no_two_pods_have_one_user_whatever_comes_and_goes(steps):
    with tempfile.TemporaryDirectory() as name:
        root, held = Path(name), {}
        known = Users(root)
        for what, uid in steps:
            folder = PodFolder(root, uid)
            if what == "restart":
                known = Users(root)  # an agent that has only what was written down
            elif what == "take":
                user = known.take(uid)
                assert held.setdefault(uid, user) == user
                folder.create()
                folder.save_pod({})
                folder.save(PodRecord(uid=user))
            else:
                folder.remove()
                known.release(uid)
                held.pop(uid, None)
            assert len(set(held.values())) == len(held)


def test_when_all_are_taken_it_is_said():
    assert first_free("0-0", {7}, first=7, count=2) == 8
    with pytest.raises(ConfigError, match="all 2 users for pods are taken, from 7 on"):
        first_free("0-0", {7, 8}, first=7, count=2)


@pytest.mark.skipif(find_bubblewrap() is None, reason="there is no bubblewrap")
@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root")
def test_pods_get_users_of_their_own_and_give_them_back(box, monkeypatch):
    monkeypatch.setattr(users, "COUNT", 2)

    async def story(box):
        for name in "ab":
            await box.create(name, f"exec sleep 77{name == 'b':d}.125")
            await box.until_phase(name, "Running")
        first = {await user(box, "770.125"), await user(box, "771.125")}
        assert first == {users.FIRST, users.FIRST + 1}
        await box.stop()
        await box.start()
        await box.create("c", "exec sleep 772.125")
        await box.until_event("c", "FailedPrepareDynamicResources")
        assert await box.phase("c") == "Pending"
        freed = await user(box, "770.125")
        await box.delete("a", grace_seconds=0)
        await box.until_phase("c", "Running")
        assert await user(box, "772.125") == freed

    box(story)


async def user(box, marker):
    """Who runs `sleep MARKER` of this machine, once that is what runs."""

    def found():
        return {owner for pid in pids_with(marker) if (owner := of_sleep(pid)) is not None}

    [one] = await box.until(found)
    return one


def of_sleep(pid):
    with suppress(OSError), open(f"/proc/{pid}/comm") as file:
        if file.read().strip() == "sleep":
            return os.stat(f"/proc/{pid}").st_uid
    return None
