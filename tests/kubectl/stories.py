"""What is said to both sides; `sides` tells how a line is read."""

from __future__ import annotations

MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: one, labels: {set: x, tier: web}, annotations: {note: "1"}}
data: {k: v, l: w}
"""
LIST = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {k: v}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: two}, data: {k: v}}
"""
WIDGET = "{apiVersion: nope.test/v1, kind: Widget, metadata: {name: one}}"
LEASE = """
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: held}
spec: {holderIdentity: me, renewTime: "yesterday"}
"""
POLICY = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: few-keys}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}
  validations: [{expression: "object.data.size() < 2", message: too many keys}]
"""
BINDING = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: few-keys}
spec:
  policyName: few-keys
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}}
"""
TWO = MAP.replace("name: one", "name: two").replace("tier: web", "tier: db").replace(", l: w", "")
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, image: "web:1", ports: [{containerPort: 80}]}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: lone, labels: {app: lone}}
spec:
  terminationGracePeriodSeconds: 5
  initContainers: [{name: first, image: "init:1"}]
  containers:
  - name: main
    image: web:1
    command: [run, --fast]
    env:
    - {name: PLAIN, value: x}
    - {name: FROM, valueFrom: {configMapKeyRef: {name: one, key: k}}}
    ports: [{containerPort: 80, name: http}]
    livenessProbe: {httpGet: {path: /live, port: http}}
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 128Mi}}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
  nodeSelector: {disk: fast}
  tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: work}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: "w:1"}]
"""
CRON = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "0 3 * * *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: OnFailure
          containers: [{name: main, image: "w:1"}]
"""
STATEFUL = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: main, image: "db:1"}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: None
  selector: {app: web}
  ports: [{port: 80, name: http}]
"""
BUDGET = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec:
  minAvailable: 1
  selector: {matchLabels: {app: web}}
"""
LEASE = """
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: leader}
spec: {holderIdentity: me, leaseDurationSeconds: 15, renewTime: "2024-01-01T00:00:00.000000Z"}
"""
NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/hostname: n1, node-role.kubernetes.io/worker: ""}}
spec: {taints: [{key: gpu, effect: NoSchedule}]}
status:
  capacity: {cpu: "4", memory: 8Gi, pods: "10", nvidia.com/gpu: "2"}
  allocatable: {cpu: "4", memory: 8Gi, pods: "10", nvidia.com/gpu: "2"}
  conditions:
  - {type: Ready, status: "True", reason: KubeletReady, message: ok,
     lastHeartbeatTime: "2024-01-01T00:00:00Z", lastTransitionTime: "2024-01-01T00:00:00Z"}
  addresses: [{type: InternalIP, address: 10.1.1.1}, {type: Hostname, address: n1}]
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: gpu}
spec:
  devices: {requests: [{name: one, exactly: {deviceClassName: words.test, count: 1}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpus}
spec:
  spec:
    devices: {requests: [{name: one, exactly: {deviceClassName: words.test, count: 1}}]}
"""
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boxes.words.test}
spec:
  group: words.test
  scope: Namespaced
  names: {plural: boxes, kind: Box, shortNames: [bx], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Colour, type: string, jsonPath: .spec.colour, priority: 1}
    - {name: Born, type: date, jsonPath: .metadata.creationTimestamp}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}
    schema:
      openAPIV3Schema:
        type: object
        description: A box.
        properties:
          spec:
            type: object
            description: What it should be.
            x-kubernetes-validations: [{rule: "self.size < 10", message: "too big"}]
            properties:
              size: {type: integer, description: How large.}
              colour: {type: string, default: red, enum: [red, green]}
          status:
            type: object
            properties:
              size: {type: integer}
              conditions:
                type: array
                items:
                  type: object
                  properties: {type: {type: string}, status: {type: string}}
"""
BOX = """
apiVersion: words.test/v1
kind: Box
metadata: {name: b}
spec: {size: 3}
"""
KUSTOMIZATION = """
namePrefix: pre-
resources: [map.yaml]
configMapGenerator: [{name: made, literals: [a=b]}]
labels: [{pairs: {by: kustomize}}]
"""

FILES = {
    "list.yaml": LIST,
    "widget.yaml": WIDGET,
    "corewidget.yaml": WIDGET.replace("nope.test/v1", "v1"),
    "badbytes.yaml": MAP.replace("name: one", "name: bad").replace(
        "data:", 'binaryData: {x: "!!"}\ndata:'
    ),
    "badlease.yaml": LEASE,
    "space.yaml": "{apiVersion: v1, kind: Namespace, metadata: {name: NS-b}}",
    "policy.yaml": POLICY,
    "binding.yaml": BINDING,
    "placed.yaml": DEPLOYMENT.replace(
        "    spec:\n      cont", "    spec:\n      nodeName: placed\n      cont"
    ),
    "placed-node.yaml": NODE.replace("n1", "placed"),
    "map.yaml": MAP,
    "maps.yaml": f"{MAP}---{TWO}",
    "changed.yaml": MAP.replace("k: v", "k: changed"),
    "deployment.yaml": DEPLOYMENT,
    "empty.yaml": DEPLOYMENT.replace("replicas: 2", "replicas: 0"),
    "pod.yaml": POD,
    "job.yaml": JOB,
    "cron.yaml": CRON,
    "badcron.yaml": CRON.replace("0 3 * * *", "every day"),
    "stateful.yaml": STATEFUL,
    "service.yaml": SERVICE,
    "budget.yaml": BUDGET,
    "lease.yaml": LEASE,
    "node.yaml": NODE,
    "claim.yaml": CLAIM,
    "crd.yaml": CRD,
    "box.yaml": BOX,
    "bigbox.yaml": BOX.replace("3", "30"),
    "wrong.yaml": MAP.replace("data:", "dat:"),
    "broken.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: [",
    "kustomization.yaml": KUSTOMIZATION,
}

STORIES: dict[str, list[str]] = {
    "lists and kinds that are not served": [
        "apply -f list.yaml",
        "apply -f list.yaml",
        "edit configmap one two",
        "get configmap one two -o jsonpath={.items[*].data.k}",
        "diff -f list.yaml",
        "delete -f list.yaml",
        "create -f list.yaml --dry-run=server",
        "apply -f widget.yaml",
        "create -f widget.yaml",
        "replace -f widget.yaml",
        "apply -f corewidget.yaml",
        "apply --server-side -f widget.yaml",
        "delete -f widget.yaml",
    ],
    "values of the wrong type": [
        "apply -f badbytes.yaml",
        "create -f badlease.yaml",
        "create deployment web --image=w:1 --replicas=0",
        "scale deployment web --replicas=3000000000",
        "apply --server-side -f badbytes.yaml",
        "get configmap bad",
        "sorted: get leases,deployments -o name",
    ],
    "a namespace that is replaced and deleted": [
        "create namespace NS-b",
        "create secret generic key --from-literal=a=b -n NS-b",
        "replace -f space.yaml",
        "get namespace NS-b -o jsonpath={.spec.finalizers}",
        "delete namespace NS-b",
        "create namespace NS-b",
        "get secrets -n NS-b",
        "delete namespace NS-b --wait=false",
    ],
    "a policy that denies": [
        "create -f policy.yaml",
        "create -f binding.yaml",
        "until: create configmap many --from-literal=a=b --from-literal=c=d --dry-run=server"
        " ~ denied request",
        "create configmap many --from-literal=a=b --from-literal=c=d",
        "create configmap few --from-literal=a=b",
        'patch configmap few --type=merge -p {"data":{"e":"f"}}',
        "delete -f binding.yaml",
        "delete -f policy.yaml",
    ],
    "apply": [
        "apply -f map.yaml",
        "apply -f map.yaml",
        "diff -f changed.yaml",
        "apply -f changed.yaml",
        "apply view-last-applied configmap one",
        "get configmap one -o yaml",
        "get configmap one -o jsonpath={.data}",
        "apply -f wrong.yaml",
        "apply -f wrong.yaml --validate=warn",
        "apply -f broken.yaml",
        "apply -f changed.yaml --dry-run=server",
        "apply -f changed.yaml --dry-run=client -o name",
        "delete -f map.yaml",
        "get configmap one",
    ],
    "server-side": [
        "apply --server-side -f map.yaml",
        "apply --server-side --field-manager=other -f changed.yaml",
        "apply --server-side --field-manager=other --force-conflicts -f changed.yaml",
        "get configmap one -o yaml --show-managed-fields",
        "diff --server-side --field-manager=other -f map.yaml",
    ],
    "prune": [
        "apply --prune -l set=x -f maps.yaml",
        "apply --prune -l set=x -f map.yaml",
        "get configmaps -l set=x",
        "get configmaps -l tier!=web,set",
    ],
    "kustomize": [
        "apply -k .",
        "get configmap pre-one -o jsonpath={.data.k}{.metadata.labels}",
        "diff -k .",
        "delete -k .",
    ],
    "edit and patch": [
        "create -f map.yaml",
        "create -f map.yaml",
        "edit configmap one",
        "get configmap one -o jsonpath={.data.k}",
        "edit configmap one",
        'patch configmap one -p {"data":{"x":"1"}}',
        'patch configmap one --type=merge -p {"data":{"x":null}}',
        'patch configmap one --type=json -p [{"op":"remove","path":"/data/l"}]',
        'patch configmap one --type=json -p [{"op":"remove","path":"/data/l"}]',
        'patch configmap one -p {"data":{"x":1}}',
        'patch configmap one -p {"metadata":{"name":"other"}}',
        "label configmap one tier=api --overwrite",
        "label configmap one tier=db",
        "label configmap one bad=_",
        "label configmap one tier-",
        "annotate configmap one note-",
        "annotate configmap one note=2",
        "get configmap one -o jsonpath={.data}{.metadata.labels}{.metadata.annotations}",
        "replace -f changed.yaml",
        "replace --force -f changed.yaml",
        "get configmaps -o name",
    ],
    "lists": [
        "apply -f maps.yaml",
        "get configmaps -l set=x",
        "get configmaps -l set=x -o wide --show-labels",
        "get configmaps -l set=x --chunk-size=1 -o name",
        "get configmaps -l set=x -L tier --sort-by=.metadata.name",
        "get configmaps -l set=x -o custom-columns=N:.metadata.name,K:.data.k",
        "get configmaps -l set=x -o go-template={{range.items}}{{.metadata.name}}{{end}}",
        "get configmaps --field-selector metadata.name=one",
        "get configmaps --field-selector nope=one",
        "get configmaps -l a=(",
        "get configmaps,secrets -l set=x",
        "get configmaps --all-namespaces --field-selector metadata.namespace=NS,metadata.name=two",
        "get configmap one two nope",
        "get nope",
        # Of the two the one with a single key: kubectl before 1.33 prints keys in any order.
        "describe configmap two",
        "get --raw /api/v1/namespaces/NS/configmaps/nope",
        "get --raw /nope",
    ],
    "create": [
        "create configmap c --from-literal=a=b",
        "create secret generic s --from-literal=a=b",
        "create secret docker-registry d --docker-username=u --docker-password=p",
        "create serviceaccount robot",
        "create role r --verb=get --resource=pods",
        "create role r2 --verb=get,list --resource=pods,deployments.apps --resource-name=x",
        "create clusterrole cr-NS --verb=get --non-resource-url=/logs/*",
        "delete clusterrole cr-NS",
        "create rolebinding rb --role=r --serviceaccount=default:robot",
        "create rolebinding rb2 --clusterrole=view --user=bob --group=team",
        "get configmap,secret,role,rolebinding",
        "get rolebinding -o wide",
        "describe role r",
        "describe rolebinding rb",
        "describe secret s",
        "describe serviceaccount robot",
        "create job j --image=x -- true",
        "create quota q --hard=pods=2",
        "create priorityclass pc-NS --value=10 --description=hi",
        "get priorityclass pc-NS",
        "describe priorityclass pc-NS",
        "delete priorityclass pc-NS",
        "create poddisruptionbudget pdb --selector=app=web --min-available=1",
        "create service clusterip svc --tcp=80:8080",
        "create service nodeport np --tcp=80",
        "create ingress ing --rule=h/p=svc:80",
        "create namespace NS",
        "create token robot",
        "create token robot --duration=1m",
        "create token nope",
        "create configmap Bad_Name",
        "create deployment d --image=x --replicas=-1",
    ],
    "access": [
        "auth can-i create pods",
        "auth can-i create pods --as=bob",
        "auth can-i create pods --as=bob -v=0 --quiet",
        "auth can-i get pods --as=system:serviceaccount:NS:default",
        "auth can-i get /healthz --as=bob",
        "auth can-i nope things",
        "get pods --as=bob",
        "get nodes --as=bob",
        "create rolebinding v --clusterrole=view --user=bob",
        "auth can-i list pods --as=bob",
        "auth can-i list secrets --as=bob",
        "auth can-i list pods --subresource=log --as=bob",
        "sorted: auth can-i --list --as=nobody",
        "auth whoami --as=bob --as-group=team",
        "auth reconcile -f map.yaml",
        "create role too --verb=* --resource=* --as=bob",
    ],
    "rollouts": [
        "apply -f deployment.yaml",
        "until: get deployment web -o jsonpath={.status.unavailableReplicas} ~ 2",
        "get deployment web",
        "rollout status deployment/web --watch=false",
        "until: get pods -l app=web -o name ~ pod/",
        "get pods -l app=web --no-headers",
        "ready: app=web",
        "rollout status deployment/web --timeout=20s",
        "wait deployment/web --for=condition=Available --timeout=20s",
        "get deployment web -o wide",
        "get replicasets -o wide",
        "get all",
        "set image deployment/web main=web:2",
        "until: get replicasets -o name ~ \nreplicaset",
        "rollout history deployment/web",
        "rollout history deployment/web --revision=1",
        "rollout history deployment/web --revision=9",
        "rollout undo deployment/web",
        "until: get deployment web -o jsonpath={..image} ~ web:1",
        "rollout undo deployment/web --to-revision=9",
        "set env deployment/web A=b",
        "set resources deployment/web --limits=cpu=100m,memory=64Mi",
        "set serviceaccount deployment/web robot",
        "get deployment web -o jsonpath={.spec.template.spec}",
        'patch deployment web -p {"spec":{"strategy":{"type":"Recreate"}}}',
        'patch deployment web -p {"spec":{"selector":{"matchLabels":{"a":"b"}}}}',
        'patch deployment web -p {"metadata":{"finalizers":["bad"]}}',
        "rollout pause deployment/web",
        "rollout pause deployment/web",
        "rollout resume deployment/web",
        "rollout restart deployment/web",
        "scale deployment web --replicas=1",
        "scale deployment web --replicas=0 --current-replicas=3",
        "scale deployment nope --replicas=1",
        "autoscale deployment web --min=1 --max=3 --cpu=50%",
        "until: get hpa web ~ web",
        "get hpa web --no-headers",
        "wait deployment/web --for=jsonpath={.spec.replicas}=1 --timeout=5s",
        "wait deployment/web --for=condition=Nope --timeout=1s",
        "wait deployment/nope --for=delete --timeout=1s",
        "expose deployment web --port=80 --cluster-ip=None",
        "get service web -o jsonpath={.spec}",
        "delete deployment web --cascade=foreground --timeout=20s",
        "get deployment web",
    ],
    "descriptions": [
        "quiet: create -f placed-node.yaml",
        "apply -f placed.yaml -f service.yaml",
        "until: get replicasets ~ web",
        "until: get deployment web -o jsonpath={.status.unavailableReplicas} ~ 2",
        "ready: app=web",
        "until: get deployment web -o jsonpath={.status.readyReplicas} ~ 2",
        "until: get events ~ SuccessfulCreate",
        "until: get endpointslices ~ 10.0.0.1",
        "describe deployment web",
        "describe replicaset -l app=web",
        "describe service web",
        "get endpointslices",
        "get service web",
        "events --for=deployment/web",
        "sorted: get events -o custom-columns=T:.type,R:.reason,K:.involvedObject.kind,M:.message",
        "until: get endpoints web ~ 10.0.0.1",
        "get endpoints web",
        "quiet: delete pods --all --grace-period=0 --force",
        "quiet: delete node placed",
    ],
    "pods": [
        "apply -f pod.yaml",
        "get pod lone",
        "get pod lone -o wide",
        "describe pod lone",
        "ready: app=lone",
        "get pod lone",
        "logs lone",
        "logs lone -c main",
        "logs lone -c nope",
        "exec lone -- true",
        "top pod lone",
        "run quick --image=x --restart=Never --labels=app=quick",
        "get pod quick -o jsonpath={.spec.restartPolicy}{.status.qosClass}",
        'patch pod quick -p {"spec":{"containers":[{"name":"quick","image":"y"}]}}',
        'patch pod quick -p {"spec":{"nodeName":"n"}}',
        "set image pod/quick quick=z",
        "delete pod quick --grace-period=0 --force",
        "delete pod lone --now",
        "delete pod lone --ignore-not-found",
        "delete pod lone",
    ],
    "jobs": [
        "apply -f job.yaml",
        "until: get pods -l job-name=work ~ work-",
        "until: get job work -o jsonpath={.status.active} ~ 1",
        "get job work",
        "get job work -o wide",
        "describe job work",
        "ended: job-name=work",
        "wait job/work --for=condition=Complete --timeout=20s",
        "get job work",
        "apply -f cron.yaml",
        "get cronjob nightly",
        "get cronjob nightly -o wide",
        "create job now --from=cronjob/nightly",
        "get job now -o jsonpath={.metadata.annotations}{.metadata.ownerReferences[0].kind}",
        "describe cronjob nightly",
        "apply -f badcron.yaml",
        'patch cronjob nightly -p {"spec":{"suspend":true}}',
        "get cronjob nightly",
        'patch job work -p {"spec":{"completions":5}}',
        "delete job work --cascade=background",
        "delete cronjob nightly",
    ],
    "stateful sets": [
        "apply -f stateful.yaml",
        "until: get pods ~ db-0",
        "get pods --no-headers",
        "get pvc --no-headers",
        "ready: app=db",
        "until: get pods ~ db-1",
        "ready: app=db",
        "until: get statefulset db ~ 2/2",
        "get statefulset db -o wide",
        "rollout status statefulset/db --timeout=20s",
        "rollout history statefulset/db",
        "sorted: describe statefulset db",
        "describe pvc data-db-0",
        "get controllerrevisions --no-headers",
        "scale statefulset db --replicas=1",
        "delete statefulset db --cascade=orphan",
        "get pod db-0 -o jsonpath={.metadata.ownerReferences}",
    ],
    "cascades": [
        "apply -f deployment.yaml",
        "until: get pods -l app=web -o name ~ pod/",
        "until: get deployment web -o jsonpath={.status.replicas} ~ 2",
        "delete deployment web --cascade=orphan",
        "get replicasets --no-headers",
        "delete replicaset -l app=web --cascade=orphan",
        "get pods -l app=web --no-headers",
        "delete pods -l app=web --wait=true",
        "get pods",
        "apply -f deployment.yaml",
        "until: get deployment web -o jsonpath={.status.replicas} ~ 2",
        "delete deployment web --cascade=background --wait=false",
        "wait pods -l app=web --for=delete --timeout=20s",
        "delete configmaps --all",
        "delete deployment --all",
        "delete nope x",
        "delete configmap nope",
        "delete configmap nope --ignore-not-found",
    ],
    "watching": [
        "watch: get configmaps -w --no-headers -l set=x",
        "quiet: apply -f map.yaml",
        "watched: 1",
        "quiet: delete -f map.yaml",
        "watched: 1",
        "quiet: apply -f maps.yaml",
        "watched: 2",
        "quiet: label configmap one set-",
        "watched: 1",
    ],
    "watched events": [
        "watch: get configmaps -w --output-watch-events -l set=x -o name",
        "quiet: apply -f map.yaml",
        "watched: 1",
        "quiet: label configmap one set=y --overwrite",
        "watched: 1",
    ],
    "budgets": [
        "apply -f empty.yaml -f budget.yaml",
        "until: get pdb web -o jsonpath={.status.observedGeneration} ~ 1",
        "get pdb web",
        "describe pdb web",
        "scale deployment web --replicas=2",
        "until: get deployment web -o jsonpath={.status.replicas} ~ 2",
        "ready: app=web",
        "until: get pdb web -o jsonpath={.status.disruptionsAllowed} ~ 1",
        "get pdb web",
    ],
    "refusals": [
        "apply -f stateful.yaml",
        "apply -f cron.yaml",
        "apply -f job.yaml",
        'patch statefulset db -p {"spec":{"serviceName":"x"}}',
        'patch statefulset db -p {"spec":{"podManagementPolicy":"Parallel"}}',
        'patch statefulset db -p {"spec":{"replicas":-1}}',
        'patch cronjob nightly -p {"spec":{"concurrencyPolicy":"Nope"}}',
        'patch cronjob nightly -p {"spec":{"timeZone":"Mars/Olympus"}}',
        'patch cronjob nightly -p {"spec":{"startingDeadlineSeconds":-1}}',
        'patch cronjob nightly -p {"spec":{"schedule":"61"}}',
        'patch job work -p {"spec":{"parallelism":-1}}',
        'patch job work -p {"spec":{"backoffLimit":-1}}',
        'patch job work -p {"spec":{"ttlSecondsAfterFinished":-1}}',
        'patch job work -p {"spec":{"suspend":true}}',
        "get job work",
        "create -f service.yaml",
        'patch service web -p {"spec":{"type":"Nope"}}',
        'patch service web -p {"spec":{"clusterIP":"1.2.3.4"}}',
        'patch service web -p {"spec":{"sessionAffinity":"Nope"}}',
        'patch service web -p {"spec":{"type":"ExternalName"}}',
        "create -f pod.yaml",
        'patch pod lone -p {"spec":{"activeDeadlineSeconds":0}}',
        'patch pod lone -p {"spec":{"tolerations":[]}}',
        'patch pod lone -p {"metadata":{"name":"x"}}',
        "patch pod lone --subresource=resize -p"
        ' {"spec":{"containers":[{"name":"main","resources":{"limits":{"memory":"256Mi"}}}]}}',
        "patch pod lone --subresource=ephemeralcontainers -p"
        ' {"spec":{"ephemeralContainers":[{"name":"d","image":"x"}]}}',
        "get pod lone -o jsonpath={.spec.ephemeralContainers}",
        "run bad --image= --restart=Never",
        "run Bad --image=x",
        "run ok --image=x --restart=Nope",
        "create -f budget.yaml",
        'patch pdb web --type=merge -p {"spec":{"minAvailable":"x%"}}',
        "create quota q --hard=nope=1",
        "create quota q2 --hard=pods=-1",
        "create quota q3 --hard=pods=1",
        "until: get quota q3 -o jsonpath={.status.used} ~ pods",
        "run over --image=x",
        "create priorityclass system-x --value=1",
        "create priorityclass pc2-NS --value=2000000000",
        "create role r --verb=nope --resource=pods",
        "create role r --verb=get --resource=nope",
        "create configmap c --from-literal=a=b",
        'patch configmap c --type=merge -p {"immutable":true}',
        'patch configmap c --type=merge -p {"data":{"a":"c"}}',
        "create secret generic s --type=kubernetes.io/tls",
        "create secret generic s --type=kubernetes.io/dockerconfigjson",
        "create secret generic s --from-literal=a=b",
        'patch secret s --type=merge -p {"type":"x"}',
        'patch namespace NS -p {"metadata":{"labels":{"kubernetes.io/metadata.name":"x"}}}',
        "delete namespace default",
        "delete namespace kube-system --dry-run=server",
        "create namespace Bad",
        "create namespace kube-bad-NS",
        "get namespace kube-bad-NS -o jsonpath={.spec}{.status}",
        "delete namespace kube-bad-NS",
        "scale statefulset db --replicas=0",
        "scale job work --replicas=2",
        "label pod lone -l app=lone x=y",
        "label pods --all x=z --overwrite",
        "apply -f lease.yaml",
        'patch lease leader --type=merge -p {"spec":{"leaseDurationSeconds":0}}',
        "apply -f claim.yaml",
        'patch resourceclaim gpu --type=merge -p {"spec":{"devices":{"requests":[]}}}',
        "create ingress i --rule=a.b/c=d:80",
        "get ingress i",
        "describe ingress i",
        'patch ingress i --type=merge -p {"spec":{"rules":[{"host":"BAD"}]}}',
        "autoscale statefulset db --max=3",
        "get hpa db",
        "describe hpa db",
        'patch hpa db --type=merge -p {"spec":{"maxReplicas":0}}',
        'patch hpa db --type=merge -p {"spec":{"minReplicas":9}}',
    ],
    "others": [
        "apply -f lease.yaml",
        "get lease leader",
        "describe lease leader",
        "apply -f claim.yaml",
        "get resourceclaims,resourceclaimtemplates",
        "describe resourceclaim gpu",
        "create quota q --hard=pods=2,requests.cpu=1",
        "until: get quota q -o jsonpath={.status.used} ~ pods",
        "get quota q",
        "describe quota q",
        "describe namespace NS",
        "get namespace NS",
        "get serviceaccounts",
        "describe serviceaccount default",
        "get clusterrole view",
        "describe clusterrole system:basic-user",
        "describe clusterrolebinding cluster-admin",
        "cluster-info",
        "get configmap kube-root-ca.crt --no-headers",
    ],
    "nodes": [
        "create -f node.yaml",
        "get node n1",
        "get node n1 -o wide",
        "describe node n1",
        "cordon n1",
        "get node n1",
        "taint node n1 x=y:NoExecute",
        "uncordon n1",
        "drain n1 --dry-run=server",
        "delete node n1",
    ],
    "explain": [
        "explain pod.spec.containers.ports.protocol -o plaintext-openapiv2",
        "explain nope",
        "explain pod.nope",
    ],
    "what is served": [
        "sorted: api-versions",
        "sorted: api-resources --no-headers --api-group=",
        "sorted: api-resources --no-headers --api-group=apps",
        "sorted: api-resources --no-headers --api-group=batch -o wide",
        "sorted: api-resources --no-headers --api-group=rbac.authorization.k8s.io",
        "sorted: api-resources --no-headers --api-group=resource.k8s.io",
        "api-resources --api-group=nope",
    ],
}

DEFINITIONS: list[str] = [
    "apply -f crd.yaml",
    "wait crd/boxes.words.test --for=condition=Established --timeout=20s",
    "until: api-resources ~ boxes",
    "until: get boxes ~ No resources",
    "get crd boxes.words.test --no-headers",
    "apply -f box.yaml",
    "apply -f box.yaml",
    "get bx",
    "get all",
    "get boxes -o wide",
    "get box b -o jsonpath={.spec}",
    "apply -f bigbox.yaml",
    'patch box b --type=merge -p {"spec":{"size":"x"}}',
    'patch box b --type=merge -p {"spec":{"colour":"blue"}}',
    'patch box b -p {"spec":{"size":1}}',
    "patch box b --type=merge --subresource=status"
    ' -p {"status":{"conditions":[{"type":"Ready","status":"True"}]}}',
    "wait box/b --for=condition=Ready --timeout=5s",
    "scale box b --replicas=4",
    "apply --server-side --field-manager=me -f box.yaml",
    "apply --server-side --field-manager=me --force-conflicts -f box.yaml",
    "until: explain box ~ A box",
    "explain box",
    "explain box.spec",
    "explain box.spec.size",
    "explain box --recursive",
    "api-resources --api-group=words.test",
    "describe box b",
    "get boxes -o custom-columns=S:.spec.size",
    "delete box b",
    "describe crd boxes.words.test",
]

# Where the difference is known, and why; each is a debt.
DIFFERENT: dict[str, str] = {
    "scale deployment web --replicas=3000000000": "upstream's Scale tells who owns its fields",
    "explain box": "no prose of apiVersion, kind and metadata",
    'patch box b --type=merge -p {"spec":{"size":"x"}}': "upstream asks the scale subresource too",
    "get --raw /api/v1/namespaces/NS/configmaps/nope": "kubectl before 1.33 forgets the path of the"
    " server with --raw: /planes/NAME",
    "get --raw /nope": "as the line above",
    'patch configmap one -p {"data":{"x":1}}': "upstream shows the patch as Go prints a map",
    'patch pod quick -p {"spec":{"nodeName":"n"}}': "upstream adds a diff of its Go structs",
    "describe pvc data-db-0": "no controller looks for volumes: no event says that there is none",
    "describe node n1": "no controller sets the annotation that tells kubelets how long to cache",
    "explain pod.spec.containers.ports.protocol -o plaintext-openapiv2": "no prose",
    "sorted: api-versions": "we serve v1beta1 and v1beta2 of resource.k8s.io, and our own group",
    "sorted: api-resources --no-headers --api-group=resource.k8s.io": "as the line above",
}
