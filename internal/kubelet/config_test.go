// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/kubelet"
)

const gib = int64(1) << 30

// parse reads the kubelet configuration of a manifest.
func parse(t *testing.T, text string) *v1alpha1.KubeletConfiguration {
	t.Helper()
	spec := &v1alpha1.KubeletConfiguration{}
	NewWithT(t).Expect(yaml.Unmarshal([]byte(text), spec)).To(Succeed())
	return spec
}

// TestVersion: messages and documentation name the version of the module.
func TestVersion(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	module, err := os.ReadFile("../../go.mod")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(module)).To(ContainSubstring("k8s.io/kubelet v0" + strings.TrimPrefix(kubelet.Version, "1") + "."))
}

func TestFor(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	config, err := kubelet.New(parse(t, `
maxPods: math.least(110, cpu * 30)
podsPerCore: 20
kubeReserved: {cpu: double(cpu) * 0.05, memory: 256 * Mi + memory / 50, pid: "1000"}
systemReserved: {cpu: 100m, memory: string(memory / Gi * 16) + "Mi"}
evictionHard: {memory.available: 5%, nodefs.available: 2Gi, pid.available: cpu * 100}
evictionSoft: {memory.available: memory / 10}
evictionSoftGracePeriod: {memory.available: 1m30s}
registryPullQPS: 0
serializeImagePulls: false
maxParallelImagePulls: 4
containerLogMaxSize: 50Mi
featureGates: {MemoryQoS: true}
authentication: {webhook: {cacheTTL: 5m}}
cpuCFSQuotaPeriod: 5ms
`))
	g.Expect(err).NotTo(HaveOccurred())
	small, err := config.For(kubelet.VM{CPUs: 2, MemoryBytes: 4 * gib})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(small.MaxPods).To(Equal(int32(60)))
	g.Expect(small.PodsPerCore).To(Equal(int32(20)))
	g.Expect(small.KubeReserved).To(Equal(map[string]string{"cpu": "100m", "memory": "354334801", "pid": "1000"}))
	g.Expect(small.SystemReserved).To(Equal(map[string]string{"cpu": "100m", "memory": "64Mi"}))
	g.Expect(small.EvictionHard).To(Equal(map[string]string{"memory.available": "5%", "nodefs.available": "2Gi", "pid.available": "200"}))
	g.Expect(small.EvictionSoft).To(Equal(map[string]string{"memory.available": "429496729"}))
	g.Expect(*small.RegistryPullQPS).To(BeZero())
	g.Expect(small.FeatureGates).To(HaveKey("MemoryQoS"))

	large, err := config.For(kubelet.VM{CPUs: 16, MemoryBytes: 64 * gib})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(large.MaxPods).To(Equal(int32(110)))
	g.Expect(large.SystemReserved).To(HaveKeyWithValue("memory", "1024Mi"))
	g.Expect(config.Fixed().KubeReserved).To(Equal(map[string]string{"pid": "1000"}), "without the values of expressions")
}

// TestNewInvalid: messages name field, value and what is allowed.
func TestNewInvalid(t *testing.T) {
	t.Parallel()
	const known = "the kubelet's configuration (kubelet.config.k8s.io/v1beta1, Kubernetes 1.36) has no such field"
	for text, want := range map[string]string{
		`{maxPod: 5}`:                                                         `maxPod: found 5; ` + known + `; did you mean maxPods?`,
		`{MaxOpenFiles: 5}`:                                                   `MaxOpenFiles: found 5; ` + known + `; did you mean maxOpenFiles?`,
		`{shade: red}`:                                                        `shade: found "red"; ` + known,
		`{syncFrequency: 10x}`:                                                `syncFrequency: found "10x"; want a duration such as "10s" or "1m30s" (time: unknown unit "x" in duration "10x")`,
		`{registryBurst: "10"}`:                                               `registryBurst: found "10"; want an integer of 32 bits (`,
		`{authentication: {anonym: true}}`:                                    `authentication: found {"anonym":true}; unknown field "authentication.anonym"; the kubelet's fields are those of Kubernetes 1.36`,
		`{providerID: proxmox://a/1}`:                                         `providerID: found "proxmox://a/1"; the provider sets it, because Karpenter finds the Node by it: remove it`,
		`{registerWithTaints: []}`:                                            `registerWithTaints: found []; the provider sets it: use taints and startupTaints of the NodePool`,
		`{kind: KubeletConfiguration}`:                                        `kind: found "KubeletConfiguration"; the provider writes it: remove it`,
		`{maxPods: cpu *}`:                                                    `maxPods: found "cpu *"; want a number from 10 to 250, or a CEL expression over cpu (vCPUs) and memory (bytes), such as math.least(110, cpu * 30): 1:6: Syntax error`,
		`{maxPods: cpus * 2}`:                                                 `undeclared reference to 'cpus'`,
		`{maxPods: double(cpu) * 1.5}`:                                        `its type is not int: use int(...)`,
		`{kubeReserved: {memory: 10x}}`:                                       `kubeReserved.memory: found "10x"; want a quantity such as 100m or 512Mi, or a CEL expression over cpu (vCPUs) and memory (bytes), such as 256 * Mi + memory / 50: 1:3: Syntax error`,
		`{kubeReserved: {gpu: "1"}}`:                                          `kubeReserved.gpu: found "1"; want one of the keys cpu, memory, ephemeral-storage, pid`,
		`{kubeReserved: {memory: 9Ei}}`:                                       `kubeReserved.memory: found "9Ei"`,
		`{systemReserved: {memory: 2000000Gi}}`:                               `want at most 1Pi`,
		`{systemReserved: {cpu: cpu > 1}}`:                                    `its type is bool, want int, double or string`,
		`{systemReserved: {cpu: "[1].all(x, x > 0) ? 1 : 2"}}`:                `undeclared reference to 'all'`,
		`{evictionHard: {memory.available: 120%}}`:                            `evictionHard.memory.available: found "120%"`,
		`{evictionHard: {memory.free: 1Gi}}`:                                  `evictionHard.memory.free: found "1Gi"; want one of the keys memory.available, nodefs.available`,
		`{evictionSoft: {memory.available: 1Gi}}`:                             `evictionSoftGracePeriod: found no memory.available; each threshold of evictionSoft needs a duration such as 1m30s`,
		`{imageGCHighThresholdPercent: 75}`:                                   `imageGCLowThresholdPercent: found 80; want less than imageGCHighThresholdPercent, 75 (defaults: 80 and 85)`,
		`{cpuCFSQuotaPeriod: 2s}`:                                             `cpuCFSQuotaPeriod: found 2s; want a duration from 1ms to 1s`,
		`{shutdownGracePeriod: 1ms}`:                                          `shutdownGracePeriod: found 1ms; want a duration from 1s to`,
		`{shutdownGracePeriodCriticalPods: 10s}`:                              `shutdownGracePeriodCriticalPods: found 10s; want at most shutdownGracePeriod, 0s`,
		`{hairpinMode: off}`:                                                  `hairpinMode: found`,
		`{maxParallelImagePulls: 5}`:                                          `maxParallelImagePulls: found 5; more than 1 needs serializeImagePulls: false`,
		`{reservedSystemCPUs: a-b}`:                                           `reservedSystemCPUs: found "a-b"; want a list of CPUs such as 0-1,3`,
		`{logging: {options: {json: {infoBufferSize: 1e999999999}}}}`:         `want quantities without large exponents`,
		`{reservedMemory: [{numaNode: 0, limits: {memory: 1e999999999}}]}`:    `want quantities without large exponents`,
		`{imageMaximumGCAge: 2m}`:                                             `imageMaximumGCAge: found 2m0s; want 0, or more than imageMinimumGCAge, 2m0s (default: 2m0s)`,
		`{imageMinimumGCAge: 5m, imageMaximumGCAge: 5m}`:                      `imageMaximumGCAge: found 5m0s; want 0, or more than imageMinimumGCAge, 5m0s`,
		`{enforceNodeAllocatable: [pods, kube-reserved]}`:                     `enforceNodeAllocatable: found pods, kube-reserved; kube-reserved needs kubeReservedCgroup, which is not set`,
		`{enforceNodeAllocatable: [kube-reserved-compressible]}`:              `kube-reserved-compressible needs kubeReservedCgroup`,
		`{enforceNodeAllocatable: [system-reserved], kubeReservedCgroup: /a}`: `system-reserved needs systemReservedCgroup`,
		`{enforceNodeAllocatable: [system-reserved-compressible]}`:            `system-reserved-compressible needs systemReservedCgroup`,
		`{enforceNodeAllocatable: [none, pods]}`:                              `enforceNodeAllocatable: found none, pods; none cannot be combined with others`,
		`{enforceNodeAllocatable: [pods, pods]}`:                              `enforceNodeAllocatable: found pods, pods; want each only once`,
		`{enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible], kubeReservedCgroup: /a}`:       `kube-reserved cannot be combined with kube-reserved-compressible`,
		`{enforceNodeAllocatable: [system-reserved-compressible, system-reserved], systemReservedCgroup: /a}`: `system-reserved cannot be combined with system-reserved-compressible`,
		`{cgroupsPerQOS: false}`:                             `cgroupsPerQOS: found false; it needs enforceNodeAllocatable: [none], found pods (default: pods)`,
		`{cgroupsPerQOS: false, enforceNodeAllocatable: []}`: `found pods (default: pods)`,
		`{systemCgroups: /system}`:                           `systemCgroups: found "/system"; it needs cgroupRoot, which is not set`,
		`{podPidsLimit: 100000000000000000000}`:              `podPidsLimit: found 100000000000000000000; want an integer of 64 bits`,
	} {
		NewWithT(t).Expect(kubelet.New(parse(t, text))).Error().To(MatchError(And(HavePrefix("spec.kubeletConfiguration."), ContainSubstring(want))), text)
	}
	_, err := kubelet.New(parse(t, `{maxPod: 5, syncFrequency: 10x}`))
	NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring("maxPod: "), ContainSubstring("; spec.kubeletConfiguration.syncFrequency: "))), "all problems at once")
	_, err = kubelet.New(&v1alpha1.KubeletConfiguration{KubeReserved: map[string]string{"memory": strings.Repeat("1+", 1000) + "1"}})
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("it has 2001 characters, at most 1024 are allowed")))
}

// TestNewValid: values at the limits of the rules.
func TestNewValid(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{imageMaximumGCAge: 0s}`, `{imageMaximumGCAge: 121s}`, `{imageMinimumGCAge: 1m, imageMaximumGCAge: 2m}`,
		`{enforceNodeAllocatable: [pods, kube-reserved, system-reserved-compressible], kubeReservedCgroup: /a, systemReservedCgroup: /b}`,
		`{enforceNodeAllocatable: [none], cgroupsPerQOS: false}`, `{systemCgroups: /system, cgroupRoot: /}`,
	} {
		NewWithT(t).Expect(kubelet.New(parse(t, text))).Error().NotTo(HaveOccurred(), text)
	}
}

// TestForInvalid: values that depend on the VM.
func TestForInvalid(t *testing.T) {
	t.Parallel()
	const vm = "a VM with 2 vCPUs and 4Gi of memory"
	for text, want := range map[string]string{
		`{maxPods: cpu - 20}`:                                         `maxPods: found "cpu - 20"; it is -18 for ` + vm + `, want a number from 10 to 250`,
		`{maxPods: memory}`:                                           `maxPods: found "memory"; it is 4294967296 for ` + vm,
		`{maxPods: 100 / (cpu - 2)}`:                                  `division by zero for ` + vm,
		`{kubeReserved: {memory: memory - 5 * Gi}}`:                   `kubeReserved.memory: found "memory - 5 * Gi"; it is -1073741824: want 0 or more for ` + vm + `; want a quantity such as`,
		`{kubeReserved: {memory: memory * 1000000}}`:                  `want at most 1Pi`,
		`{kubeReserved: {memory: memory * memory * memory}}`:          `integer overflow`,
		`{kubeReserved: {cpu: double(cpu) * -0.5}}`:                   `it is -1: want 0 or more`,
		`{kubeReserved: {cpu: 1.0 / double(cpu - 2)}}`:                `it is +Inf`,
		`{kubeReserved: {memory: string(cpu) + "Zi"}}`:                `it is 2Zi: want 0 or a positive quantity`,
		`{evictionHard: {memory.available: cpu - 2}}`:                 `it is 0: want a positive quantity, or 0% to disable the threshold`,
		`{evictionHard: {memory.available: string(cpu * 100) + "%"}}`: `it is 200%: want a percentage from 0% to 100%`,
		`{reservedSystemCPUs: 0-2}`:                                   `reservedSystemCPUs: found "0-2"; want CPUs below 2 for ` + vm,
	} {
		config, err := kubelet.New(parse(t, text))
		NewWithT(t).Expect(err).NotTo(HaveOccurred(), text)
		_, err = config.For(kubelet.VM{CPUs: 2, MemoryBytes: 4 * gib})
		NewWithT(t).Expect(err).To(MatchError(And(HavePrefix("spec.kubeletConfiguration."), ContainSubstring(want))), text)
	}
}

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	config, err := kubelet.New(parse(t, `{userNamespaces: {idsPerPod: 65536}, maxPods: 50}`))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.CheckVersion("v1.33.0+k3s1")).To(Succeed())
	g.Expect(config.CheckVersion("unknown")).To(Succeed())
	g.Expect(config.CheckVersion("v0.0.0")).To(Succeed())
	g.Expect(config.CheckVersion("v1.32.9")).To(MatchError("spec.kubeletConfiguration.userNamespaces: needs Kubernetes 1.33, found v1.32.9, whose kubelets ignore the field"))
}

// TestSpecRoundTrip: the controller writes status and annotations with the whole object.
func TestSpecRoundTrip(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{}`, `{"maxPods":42}`, `{"maxPods":"cpu * 10"}`, `{"failSwapOn":false,"logging":{"format":"json"},"podPidsLimit":9223372036854775807}`,
		`{"-":1,"MaxPods":5,"evictionHard":{"memory.available":"5%"}}`,
	} {
		spec := &v1alpha1.KubeletConfiguration{}
		NewWithT(t).Expect(json.Unmarshal([]byte(text), spec)).To(Succeed())
		NewWithT(t).Expect(json.Marshal(spec)).To(MatchJSON(text))
		NewWithT(t).Expect(json.Marshal(spec.DeepCopy())).To(MatchJSON(text))
	}
}
