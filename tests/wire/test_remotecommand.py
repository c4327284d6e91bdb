"""The words of exec, attach and port-forward."""

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidplane.errors import ApiError, NotFound
from bidplane.wire.streams import remotecommand as rc
from bidplane.wire.streams.remotecommand import ChannelData, Channels, End, Sizes, Wanted

# A busy machine is not a fault.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@BUSY
@given(protocol=st.sampled_from(rc.OVER_WEBSOCKET), channel=st.integers(0, 4), data=st.binary())
def test_a_channels_data_is_read_back(protocol, channel, data):
    codec = Channels(protocol)
    assert codec.decode(codec.encode(channel, data)) == ChannelData(channel, data)


@BUSY
@given(protocol=st.sampled_from(rc.OVER_WEBSOCKET), message=st.binary(max_size=20))
def test_any_message_is_a_channel_or_an_error(protocol, message):
    try:
        found = Channels(protocol).decode(message)
    except rc.ChannelError:
        return
    assert isinstance(found, ChannelData | End)


def test_only_v5_closes_a_channel():
    assert Channels(rc.V5).decode(b"\xff\x00") == End(0)
    assert Channels(rc.V4).decode(b"\xff\x00") == ChannelData(255, b"\0")
    for bad in (b"\xff", b"\xff\0\1"):
        with pytest.raises(rc.ChannelError, match="one channel"):
            Channels(rc.V5).decode(bad)


@BUSY
@given(
    sizes=st.lists(st.tuples(st.integers(1, 65535), st.integers(1, 65535)), max_size=5),
    places=st.lists(st.integers(0, 500), max_size=6),
)
def test_sizes_arrive_in_any_pieces(sizes, places):
    wire = b"\n".join(json.dumps({"Width": w, "Height": h}).encode() for w, h in sizes)
    at = sorted({p % (len(wire) + 1) for p in places} | {0, len(wire)})
    reader = Sizes()
    got = [size for a, b in itertools.pairwise(at) for size in reader.feed(wire[a:b])]
    assert got == sizes


@pytest.mark.parametrize(
    "noise",
    [
        b'{"Width":0,"Height":1}',
        b'{"Width":-1,"Height":70000}',
        b'{"Width":"80","Height":true}',
        b"[1]",
        b"7",
    ],
)
def test_what_is_no_size_is_passed_over(noise):
    reader = Sizes()
    assert reader.feed(noise + b' {"Width":80,"Height":24}') == [(80, 24)]


def test_a_size_without_an_end_is_forgotten():
    reader = Sizes()
    assert reader.feed(b"{" * 5000) == []
    assert reader.feed(b'{"Width":80,"Height":24}') == [(80, 24)]


@pytest.mark.parametrize("protocol", [rc.V4, rc.V5, rc.BASE64_V4])
def test_an_exit_code_is_a_status(protocol):
    assert json.loads(rc.result(protocol, 0)) == {"metadata": {}, "status": "Success"}
    said = json.loads(rc.result(protocol, 3))
    assert (said["status"], said["reason"]) == ("Failure", "NonZeroExitCode")
    assert said["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    said = json.loads(rc.result(protocol, NotFound("no such file")))
    assert (said["code"], said["reason"], said["message"]) == (404, "NotFound", "no such file")


def test_the_old_protocols_have_words_only():
    assert rc.result(rc.V3, 0) == b""
    assert rc.result(rc.V2, 3) == b"command terminated with exit code 3"
    assert rc.result(rc.V1, ApiError("x")) == b"error executing command in container: x"


def test_what_is_asked_for_is_passed_on():
    asked = {"stdin": ["true"], "stdout": ["1"], "tty": ["false"], "stderr": ["no"]}
    wanted = rc.wanted_from_api(asked)
    assert wanted == Wanted(stdin=True, stdout=True)
    passed = rc.to_kubelet(wanted, ["sh", "-c", "exit 3"])
    assert passed == [
        ("input", "1"),
        ("output", "1"),
        *(("command", word) for word in ("sh", "-c", "exit 3")),
    ]
    query = {}
    for name, value in passed:
        query.setdefault(name, []).append(value)
    assert rc.wanted_from_kubelet(query) == wanted


def test_a_terminal_has_one_output():
    wanted = rc.wanted_from_kubelet({"output": ["1"], "error": ["1"], "tty": ["1"]})
    assert wanted == Wanted(stdout=True, tty=True)
    assert wanted.streams(rc.V4) == {"error", "stdout", "resize"}
    assert wanted.streams(rc.V2) == {"error", "stdout"}


def test_no_stream_at_all_is_refused():
    with pytest.raises(rc.BadRequest, match="at least 1 of stdin"):
        rc.wanted_from_api({"tty": ["true"]})


def test_ports():
    assert rc.ports(["80", "443,8080"]) == [80, 443, 8080]
    for bad in (["0"], ["65536"], ["x"], ["1,"], ["+1"], ["¹"]):
        with pytest.raises(rc.BadRequest, match="is not a port"):
            rc.ports(bad)
    with pytest.raises(rc.BadRequest, match="required"):
        rc.ports([])
    with pytest.raises(rc.BadRequest, match="at most"):
        rc.ports(["80"] * 101)
