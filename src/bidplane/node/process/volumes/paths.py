"""
Opens paths that a tenant can change concurrently, so that none leads out of its volume.

If a path is checked first and used later, a tenant can replace a folder by a link in between. Here
the kernel resolves a path beneath a folder in one step (openat2(2)) and returns a descriptor, which
no rename changes. Shims import this module, so it imports little.
"""

import errno
import os

_OPENAT2 = 437  # on every architecture
_NO_MAGIC_LINKS, _BENEATH = 0x02, 0x08
_TRIES = 128  # the kernel gives up on a path that is renamed while it looks

_LINKS_ARE_REFUSED = (errno.ENOSYS, errno.EPERM)  # no openat2 here, or a filter that forbids it


def open_beneath(root: str, path: str, flags: int = 0) -> int:
    """
    Return a descriptor (O_PATH) of `path` inside `root`. Links that stay inside are followed;
    raises `OSError` for one that leads out.
    """
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _open(folder, path, os.O_PATH | os.O_CLOEXEC | flags)
    finally:
        os.close(folder)


def make_beneath(root: str, path: str) -> None:
    """
    Make the missing folders of `path` inside `root`, with the owner of `root`. Raises `OSError`
    for a path that leads out.
    """
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise OSError(errno.EXDEV, f"{path!r} must be a path inside it")
    owner = os.stat(root)
    done: list[str] = []
    for part in [part for part in parts if part not in ("", ".")]:
        try:
            os.close(open_beneath(root, "/".join([*done, part])))
        except FileNotFoundError:
            _make(root, "/".join(done) or ".", part, owner)
        done.append(part)


def touch_beneath(root: str, path: str) -> None:
    """Make the empty file `path` inside `root`, if there is none; its folder must be there."""
    parent, _, name = path.rpartition("/")
    folder = open_beneath(root, parent or ".", os.O_DIRECTORY)
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o644, dir_fd=folder))
    except FileExistsError:
        pass  # another pod was quicker
    finally:
        os.close(folder)


def _make(root: str, parent: str, name: str, owner: os.stat_result) -> None:
    folder = open_beneath(root, parent, os.O_DIRECTORY)
    try:
        os.mkdir(name, mode=0o755, dir_fd=folder)
        if os.geteuid() == 0:
            os.chown(name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        pass  # another container of the pod was quicker
    finally:
        os.close(folder)


def _open(folder: int, path: str, flags: int) -> int:
    import ctypes

    how = (ctypes.c_uint64 * 3)(flags, 0, _BENEATH | _NO_MAGIC_LINKS)
    libc = ctypes.CDLL(None, use_errno=True)
    number = 0
    for _ in range(_TRIES):
        descriptor: int = libc.syscall(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), 24)
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            break
    if number in _LINKS_ARE_REFUSED:
        return _step_by_step(folder, path, flags)
    if number in (errno.EXDEV, errno.ELOOP, errno.EAGAIN):
        raise OSError(number, f"it leads out of the volume at {path!r}")
    raise OSError(number, os.strerror(number), path)


def _step_by_step(folder: int, path: str, flags: int) -> int:
    """Open without openat2: component by component, and no links at all."""
    current = os.dup(folder)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        open_flags = flags if last else os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            if part == "..":
                raise OSError(errno.EXDEV, f"it leads out of the volume at {path!r}")
            descriptor = os.open(part, open_flags | os.O_NOFOLLOW, dir_fd=current)
            if (os.fstat(descriptor).st_mode & 0o170000) == 0o120000:
                os.close(descriptor)
                raise OSError(errno.ELOOP, f"it leads out of the volume at {path!r}")
        finally:
            os.close(current)
        current = descriptor
    return current
