// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// effect is the effect of a value on the rendered objects.
type effect struct {
	// value is the tested key; values set it.
	value, values string
	// kind and path (JSONPath) select the field to check.
	kind, path string
	want       string
}

const (
	container = `{.spec.template.spec.containers[0]`
	podSpec   = `{.spec.template.spec`
)

// environment returns the path of an environment variable of the controller.
func environment(name string) string { return container + `.env[?(@.name=="` + name + `")].value}` }

func effects() []effect {
	const d = "Deployment"
	return []effect{
		{"replicaCount", "replicaCount: 3", d, "{.spec.replicas}", "3"},
		{"replicaCount", "replicaCount: 3", "PodDisruptionBudget", "{.spec.maxUnavailable}", "1"},
		{"replicaCount", "replicaCount: 1", "PodDisruptionBudget", "{.spec}", ""},
		{"image.repository", "image: {repository: example.com/k}", d, container + ".image}", "example.com/k:v0.0.0-dev"},
		{"image.tag", "image: {tag: v9}", d, container + ".image}", "ghcr.io/karpenter-proxmox/karpenter-provider-proxmox:v9"},
		{"image.pullPolicy", "image: {pullPolicy: Always}", d, container + ".imagePullPolicy}", "Always"},
		{"imagePullSecrets", "imagePullSecrets: [{name: registry}]", d, podSpec + ".imagePullSecrets[0].name}", "registry"},
		{"nameOverride", "nameOverride: other", d, `{.metadata.labels.app\.kubernetes\.io/name}`, "other"},
		{"fullnameOverride", "fullnameOverride: mine", d, "{.metadata.name}", "mine"},
		{"priorityClassName", "priorityClassName: high", d, podSpec + ".priorityClassName}", "high"},
		{"serviceAccount", "serviceAccount: {name: sa, annotations: {a: b}}", "ServiceAccount", "{.metadata.name} {.metadata.annotations.a}", "sa b"},
		{"serviceAccount", "serviceAccount: {create: false, name: sa}", "ServiceAccount", "{.metadata.name}", ""},
		{"serviceAccount", "serviceAccount: {name: sa}\nnodeBootstrap: {create: false}", "ClusterRoleBinding", "{.subjects[0].name}", "sa\nsa"},
		{"serviceAccount", "serviceAccount: {name: sa}", d, podSpec + ".serviceAccountName}", "sa"},
		{"leaderElectionName", "leaderElectionName: karpenter-leader-election", d, container + ".args[2]}", "--leader-election-name=karpenter-leader-election"},
		{"leaderElectionName", "leaderElectionName: karpenter-leader-election\nbootDataSecrets: {kube-system: []}", "Role", `{.metadata.namespace} {.rules[*].resourceNames}`,
			"kube-system [\"karpenter-leader-election\"]\nkube-node-lease \nkube-system \nkube-system [\"kube-root-ca.crt\"] [\"karpenter-proxmox-maintenance\"] [\"karpenter-proxmox-fencing\"] [\"karpenter-proxmox-power\"]"},
		{"logVerbosityLevel", "logVerbosityLevel: debug", d, container + ".args[1]}", "--log-level=debug"},
		{"existingConfigSecret", "existingConfigSecret: mine", d, podSpec + ".volumes[0].secret.secretName}", "mine"},
		{"existingConfigSecret", "existingConfigSecret: mine\nconfig: {clusters: [{region: a, url: 'https://a'}]}", "Secret", "{.metadata.name}", ""},
		{"existingConfigSecretKey", "existingConfigSecretKey: pve.yaml", d, podSpec + ".volumes[0].secret.items[0].key}", "pve.yaml"},
		{"configFile", "configFile: /config/pve.yaml", d,
			container + ".args[0]} " + container + ".volumeMounts[0].mountPath} " + podSpec + ".volumes[0].secret.items[0].path}",
			"--cloud-config=/config/pve.yaml /config pve.yaml"},
		{"settings.vmMemoryOverheadPercent", "settings: {vmMemoryOverheadPercent: 0.1}", d, environment("VM_MEMORY_OVERHEAD_PERCENT"), "0.1"},
		{"settings.proxmoxVmidMax", "settings: {proxmoxVmidMax: 100000000}", d, environment("PROXMOX_VMID_MAX"), "100000000"},
		{"settings.webPagePort", "settings: {webPagePort: 8443}", d, environment("WEB_PAGE_PORT") + " " + container + `.ports[?(@.name=="webpage")].containerPort}`, "8443 8443"},
		{"settings.webPagePort", "settings: {webPagePort: 8443}\nnetworkPolicy: {enabled: true}", "NetworkPolicy", "{.spec.ingress[0].ports[*].port}", "probes webpage"},
		{"settings.webPagePort", "settings: {webPagePort: 8443}\nnodeBootstrap: {create: false}", "ClusterRoleBinding", "{.subjects[0].kind}", "ServiceAccount\nServiceAccount\nServiceAccount"},
		{"initContainers", "initContainers: [{name: before}]", d, podSpec + ".initContainers[0].name}", "before"},
		{"hostAliases", "hostAliases: [{ip: 10.0.0.1, hostnames: [pve1]}]", d, podSpec + ".hostAliases[0].hostnames[0]}", "pve1"},
		{"podAnnotations", "podAnnotations: {a: b}", d, "{.spec.template.metadata.annotations.a}", "b"},
		{"podLabels", "podLabels: {a: b}", d, "{.spec.template.metadata.labels.a}", "b"},
		{"podSecurityContext", "podSecurityContext: {runAsUser: 1000}", d, podSpec + ".securityContext.runAsUser}", "1000"},
		{"securityContext", "securityContext: {privileged: false}", d, container + ".securityContext.privileged}", "false"},
		{"resources", "resources: {limits: {memory: 2Gi}}", d, container + ".resources.limits.memory}", "2Gi"},
		{"updateStrategy", "updateStrategy: {rollingUpdate: {maxUnavailable: 2}}", d, "{.spec.strategy.type} {.spec.strategy.rollingUpdate.maxUnavailable}", "RollingUpdate 2"},
		{"updateStrategy", "updateStrategy: {type: Recreate}", d, "{.spec.strategy}", `{"type":"Recreate"}`},
		{"podDisruptionBudget", "replicaCount: 3\npodDisruptionBudget: {minAvailable: 2}", "PodDisruptionBudget", "{.spec.minAvailable} {.spec.maxUnavailable}", "2"},
		{"settings.ignoreDraRequests", "settings: {ignoreDraRequests: false}\nnodeBootstrap: {create: false}", "ClusterRole", `{.rules[?(@.apiGroups[0]=="resource.k8s.io")].resources}`,
			`["deviceclasses","resourceclaims","resourceslices"]`},
		{"settings.ignoreDraRequests", "settings: {ignoreDraRequests: true}\nnodeBootstrap: {create: false}", "ClusterRole", `{.rules[?(@.apiGroups[0]=="resource.k8s.io")].resources}`, ""},
		{"metrics", "metrics: {enabled: true}", d, `{.spec.template.metadata.annotations.prometheus\.io/port}`, "8080"},
		{"metrics.enabled", "metrics: {enabled: false}", d, `{.spec.template.metadata.annotations.prometheus\.io/port}`, ""},
		{"metrics.port", "metrics: {enabled: true, port: 9090}", d,
			container + ".args[3]} " + container + ".ports[0].containerPort} {.spec.template.metadata.annotations.prometheus\\.io/port}",
			"--metrics-port=9090 9090 9090"},
		{"metrics.type", "metrics: {enabled: true, type: service}", "Service", `{.metadata.annotations.prometheus\.io/scrape} {.spec.ports[0].port}`, "true 8080"},
		{"metrics.type", "metrics: {enabled: true, type: serviceMonitor, serviceMonitorLabels: {release: prom}}", "ServiceMonitor", "{.spec.endpoints[0].port} {.metadata.labels.release}", "metrics prom"},
		{"metrics.dashboard", "metrics: {dashboard: {enabled: true, annotations: {grafana_folder: k8s}}}", "ConfigMap", "{.metadata.labels.grafana_dashboard} {.metadata.annotations.grafana_folder}", "1 k8s"},
		{"metrics.dashboard", "", "ConfigMap", "{.metadata.namespace} {.metadata.name}", "kube-system karpenter-proxmox-fencing"},
		{"metrics.alerts", "metrics: {alerts: {enabled: true, labels: {release: prom}}}", "PrometheusRule", "{.metadata.labels.release} {.spec.groups[0].name}", "prom karpenter-provider-proxmox"},
		{"metrics.alerts", "", "PrometheusRule", "{.metadata.name}", ""},
		{"networkPolicy", "networkPolicy: {enabled: true}", "NetworkPolicy", "{.spec.egress[1].ports[*].port}", "443 6443 8006"},
		{"nodeSelector", "nodeSelector: {a: b}", d, podSpec + ".nodeSelector.a}", "b"},
		{"tolerations", "tolerations: [{key: mine}]", d, podSpec + ".tolerations[*].key}", "mine"},
		{"affinity", "affinity: {podAffinity: {a: b}}", d, podSpec + ".affinity.podAffinity.a}" + podSpec + ".affinity.nodeAffinity}", "b"},
		{"affinity", "", d, podSpec + ".affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]['key','operator']}",
			"karpenter.sh/nodepool DoesNotExist"},
		{"topologySpreadConstraints", "topologySpreadConstraints: [{topologyKey: rack}]", d, podSpec + ".topologySpreadConstraints[*].topologyKey}", "rack"},
		{"extraEnvs", "extraEnvs: [{name: HTTPS_PROXY, value: x}]", d, environment("HTTPS_PROXY"), "x"},
		{"extraArgs", "extraArgs: [--enable-profiling]", d, container + ".args[-1:]}", "--enable-profiling"},
		{"extraVolumes", "extraVolumes: [{name: ca}]", d, podSpec + ".volumes[1].name}", "ca"},
		{"extraVolumeMounts", "extraVolumeMounts: [{name: ca, mountPath: /ca}]", d, container + ".volumeMounts[1].mountPath}", "/ca"},
		{"bootDataSecrets", "bootDataSecrets: {kube-system: [], tenants: [a, b]}", "Role", `{.metadata.namespace} {.rules[*].resourceNames}`,
			"kube-system [\"proxmox-karpenter-leader-election\"]\nkube-node-lease \nkube-system \nkube-system [\"kube-root-ca.crt\"] [\"karpenter-proxmox-maintenance\"] [\"karpenter-proxmox-fencing\"] [\"karpenter-proxmox-power\"]\ntenants [\"a\",\"b\"]"},
		{"bootDataConfigMaps", "bootDataSecrets: {kube-system: []}\nbootDataConfigMaps: {tenants: [c]}", "Role", `{.metadata.namespace} {.rules[*].resourceNames}`,
			"kube-system [\"proxmox-karpenter-leader-election\"]\nkube-node-lease \nkube-system \nkube-system [\"kube-root-ca.crt\"] [\"karpenter-proxmox-maintenance\"] [\"karpenter-proxmox-fencing\"] [\"karpenter-proxmox-power\"]\ntenants [\"c\"]"},
		{"settings.systemNamespace", "settings: {systemNamespace: mine}\nbootDataSecrets: {kube-system: []}", "Role", `{.metadata.namespace} {.rules[*].resourceNames}`,
			"kube-system [\"proxmox-karpenter-leader-election\"]\nkube-node-lease \nkube-system \nmine [\"kube-root-ca.crt\"] [\"karpenter-proxmox-maintenance\"] [\"karpenter-proxmox-fencing\"] [\"karpenter-proxmox-power\"]"},
		{"settings.systemNamespace", "settings: {systemNamespace: mine}", "ConfigMap", "{.metadata.namespace} {.metadata.name}", "mine karpenter-proxmox-fencing"},
		{"bootDataNamespaces", "bootDataNamespaces: [tenants]", "Role", `{.metadata.namespace}`, "kube-system\nkube-node-lease\nkube-system\nkube-system\nkube-system\ntenants"},
		{"nodeBootstrap", "nodeBootstrap: {create: false}", "ClusterRoleBinding", `{.subjects[0].kind}`, "ServiceAccount\nServiceAccount"},
		{"customResources.nodeClass.default.enabled", "customResources: {nodeClass: {default: {enabled: true}}}", "ProxmoxNodeClass", "{.metadata.name} {.spec.securityGroups[0].name}", "default kubernetes"},
		{"customResources.nodeClass.default.spec", "customResources: {nodeClass: {default: {enabled: true, spec: {bootDevice: {size: 50Gi}}}}}", "ProxmoxNodeClass", "{.spec.bootDevice.size} {.spec.tags[0]}", "50Gi karpenter"},
		{"customResources.nodePools.default.enabled", "customResources: {nodePools: {default: {enabled: true}}}", "NodePool", "{.metadata.name} {.spec.limits.cpu}", "default 64"},
		{"customResources.nodePools.default.spec", "customResources: {nodePools: {default: {enabled: true, spec: {limits: {cpu: '8'}}}}}", "NodePool", "{.spec.limits.cpu}", "8"},
		{"customResources.nodeTemplate.default.enabled", "customResources: {nodeTemplate: {default: {enabled: true}}}", "ProxmoxUnmanagedTemplate", "{.metadata.name} {.spec.templateName}", "default talos"},
		{"customResources.nodeTemplate.default.kind", "customResources: {nodeTemplate: {default: {enabled: true, kind: ProxmoxTemplate}}}", "ProxmoxTemplate", "{.metadata.name} [{.spec.templateName}]", "default []"},
		{"customResources.nodeTemplate.default.spec", "customResources: {nodeTemplate: {default: {enabled: true, spec: {templateName: debian}}}}", "ProxmoxUnmanagedTemplate", "{.spec.templateName}", "debian"},
	}
}

// TestValues renders values of different keys together, because helm takes most of the time.
func TestValues(t *testing.T) {
	t.Parallel()
	for _, b := range batches(t, effects()) {
		t.Run(b.effects[0].value, func(t *testing.T) {
			t.Parallel()
			content, err := yaml.Marshal(b.values)
			check(t, err)
			rendered := render(t, string(content))
			for _, e := range b.effects {
				found := strings.TrimSpace(rendered.read(t, e.kind, e.path))
				expect(t, found == e.want, "%s: %s sets %s of %s to %q, want %q", e.value, e.values, e.path, e.kind, found, e.want)
			}
		})
	}
}

// batch is a number of effects that do not affect each other.
type batch struct {
	alone   bool
	values  map[string]any
	effects []effect
}

// batches joins effects whose values have different keys. Those of names, of roles and of the defaults stay alone.
func batches(t *testing.T, effects []effect) (all []*batch) {
	t.Helper()
	for _, e := range effects {
		values := map[string]any{}
		check(t, yaml.Unmarshal([]byte(e.values), &values))
		alone := len(values) != 1 || strings.Contains(e.kind, "Role") || strings.Contains(e.value, "Override") || strings.HasPrefix(e.value, "existingConfig")
		i := slices.IndexFunc(all, func(b *batch) bool {
			return !alone && !b.alone && !slices.ContainsFunc(slices.Collect(maps.Keys(values)), func(key string) bool { return b.values[key] != nil })
		})
		if i < 0 {
			i, all = len(all), append(all, &batch{alone: alone, values: map[string]any{}})
		}
		maps.Copy(all[i].values, values)
		all[i].effects = append(all[i].effects, e)
	}
	return all
}

// TestConfigChecksum checks that a changed config changes the pod template, so the Deployment
// rolls out.
func TestConfigChecksum(t *testing.T) {
	t.Parallel()
	annotation := func(values string) string {
		t.Helper()
		return render(t, values).read(t, "Deployment", `{.spec.template.metadata.annotations.checksum/config}`)
	}
	const values = "config: {clusters: [{region: a, url: 'https://a', token_id: a@pve!b, token_secret: c}]}"
	before := annotation(values)
	if before == "" || annotation(values+"\nreplicaCount: 3") != before {
		t.Errorf("the checksum annotation is %q, want one that changes only with the config", before)
	}
	if annotation(strings.Replace(values, "https://a", "https://b", 1)) == before {
		t.Error("a changed config does not change the checksum")
	}
}

// TestDefaults checks fields of the Deployment without values.
func TestDefaults(t *testing.T) {
	t.Parallel()
	rendered := render(t, "")
	for path, want := range map[string]string{
		podSpec + `.volumes[0].secret.secretName}`:    release,
		container + `.args[0]}`:                       "--cloud-config=/etc/proxmox/config.yaml",
		`{.spec.template.spec.containers[*].image}`:   "ghcr.io/karpenter-proxmox/karpenter-provider-proxmox:v0.0.0-dev",
		container + `.securityContext.capabilities}`:  `{"drop":["ALL"]}`,
		container + `.readinessProbe.httpGet.path}`:   "/readyz",
		container + `.livenessProbe.httpGet.path}`:    "/healthz",
		podSpec + `.securityContext.runAsNonRoot}`:    "true",
		podSpec + `.priorityClassName}`:               "system-cluster-critical",
		`{.spec.strategy.rollingUpdate}`:              `{"maxUnavailable":1}`,
		container + `.resources.requests.memory}`:     "256Mi",
		podSpec + `.volumes[0].secret.items[0].path}`: "config.yaml",
	} {
		found := rendered.read(t, "Deployment", path)
		expect(t, found == want, "%s: found %q, want %q", path, found, want)
	}
}
