"""What an untrusted agent's pod may not ask of the machine it runs on."""

import pytest

from bidplane.core.hosting import hostaccess


def pod(spec=None, **container):
    return {"spec": {"containers": [{"name": "main", **container}], **(spec or {})}}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (pod({"hostNetwork": True}), "spec.hostNetwork"),
        (pod({"hostPID": True}), "spec.hostPID"),
        (pod({"volumes": [{"name": "v", "hostPath": {"path": "/etc"}}]}), "hostPath"),
        (pod({"initContainers": [{"securityContext": {"privileged": True}}]}),
         "spec.initContainers[0].securityContext.privileged"),
        (pod(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "SYS_ADMIN"),
        (pod(ports=[{"containerPort": 80, "hostPort": 80}]), "hostPort"),
        (pod({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}), "seccompProfile"),
        (pod(securityContext={"appArmorProfile": {"type": "Unconfined"}}), "appArmorProfile"),
        (pod(securityContext={"seLinuxOptions": {"type": "spc_t"}}), "seLinuxOptions"),
        (pod({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
         "kernel.msgmax"),
        (pod(livenessProbe={"httpGet": {"host": "10.0.0.1", "port": 80}}),
         "spec.containers[0].livenessProbe.httpGet.host"),
        (pod(startupProbe={"tcpSocket": {"host": "127.0.0.1", "port": 22}}),
         "startupProbe.tcpSocket.host"),
        (pod({"initContainers": [{"readinessProbe": {"tcpSocket": {"host": "db", "port": 1}}}]}),
         "spec.initContainers[0].readinessProbe.tcpSocket.host"),
        (pod(lifecycle={"postStart": {"httpGet": {"host": "db", "port": 1}}}),
         "spec.containers[0].lifecycle.postStart.httpGet.host"),
        (pod(lifecycle={"preStop": {"tcpSocket": {"host": "db", "port": 1}}}),
         "lifecycle.preStop.tcpSocket.host"),
        (pod({"securityContext": {"windowsOptions": {"hostProcess": True}}}), "windowsOptions"),
    ],
)  # fmt: skip
def test_reaching_out_is_refused_by_field_with_the_remedy(asked, field):
    [problem] = hostaccess.problems(asked)
    assert field in problem
    assert "spec.trusted" in problem


def test_ordinary_pods_reach_nothing():
    ordinary = pod(
        {"volumes": [{"name": "v", "emptyDir": {}}]},
        securityContext={"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}},
        ports=[{"containerPort": 80}],
        livenessProbe={
            "httpGet": {
                "port": 80,
                "host": "",
                "httpHeaders": [{"name": "Host", "value": "a.example"}],
            }
        },
        lifecycle={"preStop": {"exec": {"command": ["true"]}}},
    )
    assert hostaccess.problems(ordinary) == []
