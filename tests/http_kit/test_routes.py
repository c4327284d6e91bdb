"""Routes: the first that fits, in the table's order."""

from __future__ import annotations

from bidplane.http.routes import Route, Routes

TABLE: Routes[str] = Routes(
    Route("GET", "/wallets", "all"),
    Route("GET|HEAD", "/wallets/{name}", "one"),
    Route("POST", "/wallets/{name}/fund", "fund"),
    Route("GET", "/wallets/{name}/{part}", "part"),
    Route("GET", "/", "root"),
)


def found(method: str, path: str) -> tuple[str, list[str]] | None:
    match = TABLE.find(method, path.split("/") if path else [])
    return None if match is None else (match.handler, match.arguments)


def test_a_route_is_found_by_method_and_parts() -> None:
    assert found("GET", "wallets") == ("all", [])
    assert found("HEAD", "wallets/a") == ("one", ["a"])
    assert found("POST", "wallets/a/fund") == ("fund", ["a"])
    assert found("GET", "wallets/a/fund") == ("part", ["a", "fund"])
    assert found("GET", "") == ("root", [])


def test_nothing_else_is() -> None:
    assert found("POST", "wallets") is None
    assert found("GET", "wallet") is None
    assert found("GET", "wallets/") is None, "an empty part is no name"
    assert found("GET", "wallets/a/b/c") is None


def test_the_methods_of_a_path() -> None:
    assert TABLE.methods(["wallets", "a", "fund"]) == ["GET", "POST"]
    assert TABLE.methods(["wallets", "a"]) == ["GET", "HEAD"]
    assert TABLE.methods(["other"]) == []


def test_a_table_can_be_read() -> None:
    assert [route.path for route in TABLE][:2] == ["/wallets", "/wallets/{name}"]
