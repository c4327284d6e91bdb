"""
NVML as some machines answer it. A recording in form only: no such machine was here, and the
answers are written by hand after NVML's documentation.
"""

from types import SimpleNamespace


class NVMLError(Exception):
    pass


class RecordedNvml:
    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 18
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, gpus, *, near=(), driver="580.126.09", cuda=13000, broken=False):
        self.gpus, self.near, self.driver, self.cuda = gpus, dict(near), driver, cuda
        self.broken = broken
        self.events = []

    def __getattr__(self, name):
        """A question the card does not know."""
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def unsupported(*_):
            raise NVMLError("Not Supported")

        return unsupported

    def _says(self, handle, key):
        if key not in self.gpus[handle]:
            raise NVMLError("Not Supported")
        return self.gpus[handle][key]

    def nvmlInit(self):  # noqa: N802
        if self.broken:
            raise NVMLError("Driver Not Loaded")

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return self.driver.encode()

    def nvmlSystemGetCudaDriverVersion_v2(self):  # noqa: N802
        return self.cuda

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return self._says(handle, "uuid")

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return self._says(handle, "name")

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(total=self._says(handle, "memory"))

    def nvmlDeviceGetArchitecture(self, handle):  # noqa: N802
        return self._says(handle, "architecture")

    def nvmlDeviceGetCudaComputeCapability(self, handle):  # noqa: N802
        return self._says(handle, "compute")

    def nvmlDeviceGetPciInfo(self, handle):  # noqa: N802
        return SimpleNamespace(busId=self._says(handle, "bus").encode())

    def nvmlDeviceGetNumaNodeId(self, handle):  # noqa: N802
        return self._says(handle, "numa")

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle):  # noqa: N802
        return self._says(handle, "width")

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle):  # noqa: N802
        return self._says(handle, "max_width")

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle):  # noqa: N802
        return self._says(handle, "generation")

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):  # noqa: N802
        return self._says(handle, "max_generation")

    def nvmlDeviceGetNvLinkState(self, handle, link):  # noqa: N802
        return int(link < len(self._says(handle, "links")))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):  # noqa: N802
        return 2 if self.gpus[handle]["links"][link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):  # noqa: N802
        peer = self.gpus[handle]["links"][link]
        return SimpleNamespace(busId=self.gpus[peer]["bus"].encode())

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):  # noqa: N802
        if (one, other) not in self.near:
            raise NVMLError("Not Supported")
        return self.near[one, other]

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        return self._says(handle, "mig")

    def nvmlEventSetCreate(self):  # noqa: N802
        return object()

    def nvmlDeviceRegisterEvents(self, handle, types, events):  # noqa: N802
        return None

    def nvmlEventSetWait_v2(self, events, milliseconds):  # noqa: N802
        if not self.events:
            raise NVMLError("Timeout")
        device, xid = self.events.pop(0)
        return SimpleNamespace(device=device, eventData=xid)


def gpu(index, **more):
    return {
        "uuid": f"GPU-{index}",
        "name": "NVIDIA H100 80GB HBM3",
        "memory": 81559 << 20,
        "architecture": 9,
        "compute": (9, 0),
        "bus": f"00000000:{0x1B + index * 8:02X}:00.0",
        "numa": index // 4,
        "width": 16,
        "max_width": 16,
        "generation": 5,
        "max_generation": 5,
        "links": ["switch"] * 18,
        "mig": (0, 0),
        **more,
    }
