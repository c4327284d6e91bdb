"""PersistentVolumeClaims and the owner's shared volumes, as directories of the machine."""

from bidplane.api.kinds import PERSISTENT_VOLUME, VOLUME_CLAIM
from bidplane.node.process.volumes.mounts import Declared, Shared


def uses(claim, **more):
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim, **more}}
    return {
        "pod": {"volumes": [volume]},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }


def made(folder, name, mode=0o777):
    path = folder / name
    path.mkdir()
    path.chmod(mode)
    return path


def test_a_store_of_models_is_everybodys_to_read_and_nobodys_to_write(box):
    async def story(box):
        for name in ("one", "two"):
            await box.create(name, "cat /v/w; touch /v/x", **uses("models"))
            await box.until_phase(name, "Failed")
            said = await box.logs(name)
            assert "weights" in said
            assert "Read-only file system" in said
        # Of a store that may be written a pod may still ask to read only.
        await box.create("careful", "touch /v/x", **uses("open", readOnly=True))
        await box.create("bold", "touch /v/y", **uses("open"))
        await box.until_phase("careful", "Failed")
        await box.until_phase("bold", "Succeeded")
        assert [path.name for path in (box.folder / "open").iterdir()] == ["y"]

    def declared(box):
        models = made(box.folder, "models")
        (models / "w").write_text("weights")
        writable = Shared(path=str(made(box.folder, "open")))
        return Declared(
            shared={"models": Shared(path=str(models), read_only=True), "open": writable}
        )

    box(story, volumes=declared)


def test_a_claim_of_one_namespace_is_not_anothers(box):
    async def story(box):
        await box.create("ours", "cat /v/w", **uses("scratch"))
        await box.until_phase("ours", "Succeeded")
        assert await box.logs("ours") == "ours"
        await box.create("theirs", "cat /v/w", **uses("hidden"))
        said = await box.until_event("theirs", "FailedMount")
        assert 'persistentvolumeclaim "hidden" is bound to no directory of this node' in said
        assert "--volumes" in said
        assert await box.phase("theirs") == "Pending"

    def declared(box):
        claims = {}
        for name, text in ((f"{box.space}/scratch", "ours"), ("another/hidden", "theirs")):
            folder = made(box.folder, name.replace("/", "-"))
            (folder / "w").write_text(text)
            claims[name] = Shared(path=str(folder))
        return Declared(claims=claims)

    box(story, volumes=declared)


def test_what_one_pod_leaves_in_a_claim_the_next_one_finds(box):
    async def story(box):
        await box.create("first", "echo kept > /v/w", **uses("data"))
        await box.until_phase("first", "Succeeded")
        await box.delete("first", grace_seconds=0)
        await box.create("second", "cat /v/w", **uses("data"))
        await box.until_phase("second", "Succeeded")
        assert await box.logs("second") == "kept\n"

    def declared(box):
        # Each pod has a user of its own, and a claim is for all of its namespace.
        return Declared(claims_folder=str(made(box.folder, "claims", 0o711)))

    box(story, volumes=declared)


async def bind(box, claim, **source):
    """A claim, and the volume it is bound to."""
    room = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    name = f"{box.space}-{claim}"
    await box.client.create(
        PERSISTENT_VOLUME, {"metadata": {"name": name}, "spec": {**room, **source}}
    )
    spec = {
        "accessModes": room["accessModes"],
        "resources": {"requests": room["capacity"]},
        "volumeName": name,
        "storageClassName": "",
    }
    await box.client.create(VOLUME_CLAIM, {"metadata": {"name": claim}, "spec": spec}, box.space)


def test_a_bound_volume_of_the_machine_is_used_where_the_owner_allows(box):
    async def story(box):
        allowed, other = box.folder / "allowed" / "v", box.folder / "other"
        for folder in (allowed, other):
            folder.mkdir(parents=True)
            (folder / "w").write_text("there")
        await bind(box, "may", hostPath={"path": str(allowed)})
        await bind(box, "mustnot", hostPath={"path": str(other)})
        await bind(box, "nfs", nfs={"server": "nobody", "path": "/"})
        for name in ("may", "mustnot", "nfs"):
            await box.create(name, "cat /v/w", **uses(name))
        await box.until_phase("may", "Succeeded")
        assert await box.logs("may") == "there"
        assert "is not allowed on this node" in await box.until_event("mustnot", "FailedMount")
        assert "neither hostPath nor local" in await box.until_event("nfs", "FailedMount")

    box(story, volumes=lambda box: Declared(host_paths=[str(made(box.folder, "allowed"))]))
