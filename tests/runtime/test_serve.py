"""Listening where it was asked to, or one clear line."""

import pytest

from bidplane.errors import UserError
from bidplane.runtime.serve import bind


def test_any_free_port():
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_a_taken_port_is_one_clear_line():
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot listen on 127.0.0.1:{port}: .*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 65536), ("127.0.0.1", -1)])
def test_what_is_no_port_is_one_clear_line(host, port):
    with pytest.raises(UserError, match="cannot listen on"):
        bind(host, port)


def test_an_address_of_another_machine():
    with pytest.raises(UserError, match="cannot listen on 192"):
        bind("192.0.2.1", 0)
