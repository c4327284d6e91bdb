"""Instances are made for whoever starts, once, and unmade after the last; whatever dies between."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.core.devices import mig
from bidplane.core.devices.mig import Slot
from bidplane.errors import UserError
from bidplane.node.fleet import NodeDeclaration
from bidplane.node.inventory import DeclaredDevices
from bidplane.node.inventory.partitions import Partitions

BOX = NodeDeclaration(name="box", product="H100", memory="80Gi", gpus=2, mig=True)
DRIVER = "gpu.bidplane.dev"


def key(device):
    return DRIVER, "box", device


ONE, TWO, BIG = (key(f"gpu-0-mig-{name}") for name in ("1g10gb-2", "1g10gb-3", "3g40gb-0"))
WHOLE = key("gpu-0")
GPU = "GPU-box-0"


def parted(folder, instances=None):
    """The node's own view after a start: what is in the folder is all that is remembered."""
    devices = DeclaredDevices(BOX)
    instances = instances or devices.instances(folder)
    made = Partitions(instances, file=folder / "partitions.json")
    made.slices_are(devices.slices())
    return made, instances


def test_an_instance_is_there_while_somebody_has_it(tmp_path):
    async def story():
        made, cards = parted(tmp_path)
        first = await made.take("a", [ONE])
        assert first[ONE].uuid.startswith("MIG-")
        assert await made.take("b", [ONE, key("gpu-1")]) == first
        assert cards.current(GPU) == [Slot("1g.10gb", 2)]
        await made.leave("a")
        assert cards.current(GPU) == [Slot("1g.10gb", 2)]
        await made.leave("b")
        assert cards.current(GPU) == []
        assert repr(made) == "<Partitions none>"

    asyncio.run(story())


def test_two_of_one_card_have_different_uuids_and_whole_cards_have_none(tmp_path):
    async def story():
        made, _ = parted(tmp_path)
        found = await made.take("a", [ONE, TWO])
        assert len({one.uuid for one in found.values()}) == 2
        assert await made.take("b", [key("gpu-1")]) == {}
        assert await made.take("c", [("other.driver", "box", "gpu-0")]) == {}

    asyncio.run(story())


def test_a_new_agent_finds_what_there_is_makes_nothing_twice_and_leaves_nothing(tmp_path):
    async def story():
        made, _ = parted(tmp_path)
        before = await made.take("a", [ONE])
        await made.take("b", [TWO])
        made, cards = parted(tmp_path)
        assert cards.current(GPU) == [Slot("1g.10gb", 2), Slot("1g.10gb", 3)]
        assert await made.take("a", [ONE]) == before
        await made.keep_only({"a"})  # b went while nobody looked
        assert cards.current(GPU) == [Slot("1g.10gb", 2)]

    asyncio.run(story())


def test_killed_between_writing_down_and_making(tmp_path):
    class Dies(BaseException):
        pass

    async def story():
        made, cards = parted(tmp_path)

        def create(gpu, slot):
            type(cards).create(cards, gpu, slot)
            raise Dies

        cards.create = create
        with pytest.raises(Dies):
            await made.take("a", [ONE])
        made, cards = parted(tmp_path)
        assert cards.current(GPU) == [Slot("1g.10gb", 2)]
        await made.keep_only(())
        assert cards.current(GPU) == [], "it is known to be our own"

    asyncio.run(story())


def test_what_somebody_else_made_is_used_and_stays(tmp_path):
    async def story():
        made, cards = parted(tmp_path)
        cards.create(GPU, Slot("1g.10gb", 2))
        assert (await made.take("a", [ONE]))[ONE].uuid.startswith("MIG-")
        await made.leave("a")
        await made.keep_only(())
        assert cards.current(GPU) == [Slot("1g.10gb", 2)]
        with pytest.raises(
            UserError, match=r"share memory slice 2; the instances in the way were not"
        ):
            await made.take("b", [BIG])
        with pytest.raises(UserError, match=r"it has instances: 1g.10gb at 2"):
            await made.take("c", [WHOLE])
        assert repr(made) == "<Partitions none>"

    asyncio.run(story())


def test_all_of_a_pods_instances_or_none(tmp_path):
    async def story():
        made, cards = parted(tmp_path)
        cards.create(GPU, Slot("1g.10gb", 3))
        with pytest.raises(UserError):
            await made.take("a", [ONE, BIG])
        assert cards.current(GPU) == [Slot("1g.10gb", 3)]

    asyncio.run(story())


def test_a_card_that_does_not_let_go_is_asked_again_and_makes_room_when_needed(tmp_path):
    async def story():
        made, cards = parted(tmp_path)
        await made.take("a", [ONE])
        destroy = cards.destroy

        def in_use(gpu, slot):
            raise UserError(f"{gpu}: in use")

        cards.destroy = in_use
        await made.leave("a")
        assert cards.current(GPU) == [Slot("1g.10gb", 2)]
        cards.destroy = destroy
        await made.take("b", [BIG])
        assert cards.current(GPU) == [Slot("3g.40gb", 0)]

    asyncio.run(story())


def test_an_instance_that_goes_under_its_holder_is_noticed(tmp_path):
    async def story():
        made, cards = parted(tmp_path)
        await made.take("a", [ONE])
        cards.destroy(GPU, Slot("1g.10gb", 2))
        await made.keep_only({"a"})
        assert made.lost == {ONE}
        await made.take("a", [ONE])
        await made.keep_only({"a"})
        assert made.lost == frozenset()

    asyncio.run(story())


NAMES = [
    ("box", f"gpu-{gpu}-mig-{profile.replace('.', '').replace('+', '-')}-{start}")
    for gpu in (0, 1)
    for profile, known in mig.profiles(80).items()
    for start in known.starts
]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.sampled_from("abc"), st.sampled_from(NAMES)),
            st.tuples(st.just("leave"), st.sampled_from("abc")),
            st.tuples(st.just("restart")),
        ),
        max_size=25,
    )
)
def test_there_is_exactly_what_is_held(tmp_path_factory, steps):
    """Whatever happens in whatever order: instances are what pods hold, no more and no less."""
    folder = tmp_path_factory.mktemp("cards")

    async def story():
        held = {}
        made, cards = parted(folder)
        for step, *rest in steps:
            if step == "take":
                who, (_, device) = rest
                try:
                    await made.take(who, [key(device)])
                    held.setdefault(device, set()).add(who)
                except UserError:
                    assert device not in held
            elif step == "leave":
                await made.leave(rest[0])
                held = {d: w - {rest[0]} for d, w in held.items() if w - {rest[0]}}
            else:
                made, cards = parted(folder)
                await made.keep_only({who for ones in held.values() for who in ones})
            there = {
                f"gpu-{at}-mig-{s.profile.replace('.', '').replace('+', '-')}-{s.start}"
                for at in (0, 1)
                for s in cards.current(f"GPU-box-{at}")
            }
            assert there == set(held)

    asyncio.run(story())
