"""Validation of names, namespaces, labels and keys, with upstream's rules and messages."""

from __future__ import annotations

import functools
import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_PATH_UNSAFE = re.compile(r"[/%]")

_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and"
    " must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex"
    " used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or"
    " '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used"
    " for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for"
    " validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or"
    " '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',"
    "  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def label_problems(name: str) -> list[str]:
    """Return the reasons why `name` is no DNS label (a namespace, a container's name)."""
    problems = []
    if len(name) > 63:
        problems.append("must be no more than 63 characters")
    if not _LABEL.fullmatch(name):
        problems.append(_LABEL_RULE)
    return problems


def subdomain_problems(name: str) -> list[str]:
    """Return the reasons why `name` is no DNS subdomain (the name of most objects)."""
    problems = []
    if len(name) > 253:
        problems.append("must be no more than 253 characters")
    if not _SUBDOMAIN.fullmatch(name):
        problems.append(_SUBDOMAIN_RULE)
    return problems


def path_segment_problems(name: str) -> list[str]:
    """Return the reasons why `name` is no path segment, which is all an RBAC name must be."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [
        f"may not contain '{character}'" for character in sorted(set(_PATH_UNSAFE.findall(name)))
    ]


@functools.lru_cache(4096)  # the same few dozen are on every object
def qualified_problems(key: str) -> tuple[str, ...]:
    """Return the reasons why `key` is no key of a label or an annotation."""
    prefix, slash, name = key.rpartition("/")
    problems = []
    if slash:
        if not prefix:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {problem}" for problem in subdomain_problems(prefix)]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 characters")
    if not _QUALIFIED.fullmatch(name):
        problems.append(_QUALIFIED_RULE)
    return tuple(problems)


def value_problems(value: str) -> list[str]:
    """Return the reasons why `value` is no value of a label."""
    if value == "":
        return []
    problems = []
    if len(value) > 63:
        problems.append("must be no more than 63 characters")
    if not _QUALIFIED.fullmatch(value):
        problems.append(_VALUE_RULE)
    return problems


def config_key_problems(key: str) -> list[str]:
    """Return the reasons why `key` is no key of the data of a ConfigMap or Secret."""
    if len(key) > 253:
        return ["must be no more than 253 characters"]
    if key == "." or key.startswith(".."):
        return [f"must not be '{key}'"]
    if not _CONFIG_KEY.fullmatch(key):
        return [
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g."
            " 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is"
            " '[-._a-zA-Z0-9]+')"
        ]
    return []
