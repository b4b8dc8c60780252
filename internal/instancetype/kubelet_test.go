// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// newNodeClassWithKubelet returns a class with a kubelet configuration in YAML.
func newNodeClassWithKubelet(t *testing.T, text string) *v1alpha1.ProxmoxNodeClass {
	t.Helper()
	class := newNodeClassWithAllHosts()
	NewWithT(t).Expect(yaml.Unmarshal([]byte(text), &class.Spec.KubeletConfiguration)).To(Succeed())
	return class
}

// TestKubeletConfigurationInOfferings: the scheduler plans with what the kubelet of each
// size reserves.
func TestKubeletConfigurationInOfferings(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	list := p.List(newNodeClassWithKubelet(t, `
maxPods: cpu * 20
podsPerCore: 15
kubeReserved: {memory: memory / 16, pid: "1000"}
systemReserved: {cpu: 200m}
evictionHard: {memory.available: 5%, nodefs.available: 1Gi}
evictionSoft: {nodefs.available: 2Gi}
evictionSoftGracePeriod: {nodefs.available: 1m}
`), "")
	for name, want := range map[string]struct{ pods, kubeMilli, kubeMiB, evictionMiB int64 }{
		"c1.2VCPU-4GB":  {30, 70, 256, 189},
		"s1.4VCPU-16GB": {60, 80, 1024, 757},
	} {
		it := find(t, list, name)
		kube, system, eviction := it.Overhead.KubeReserved, it.Overhead.SystemReserved, it.Overhead.EvictionThreshold
		if it.Capacity.Pods().Value() != want.pods || kube.Cpu().MilliValue() != want.kubeMilli || kube.Memory().Value() != want.kubeMiB*mib {
			t.Errorf("%s has %s pods and reserves %s CPU and %s memory, want %+v", name, it.Capacity.Pods(), kube.Cpu(), kube.Memory(), want)
		}
		g.Expect(eviction.Memory().Value() / mib).To(Equal(want.evictionMiB))
		g.Expect(eviction.StorageEphemeral().Value()).To(Equal(2 * gib))
		g.Expect(system.Cpu().MilliValue()).To(BeEquivalentTo(200), "%s reserves", name)
		g.Expect(system.Memory().Value()).To(Equal(64*mib), "%s reserves", name)
		g.Expect(kube).NotTo(HaveKey(corev1.ResourceName("pid")), "Nodes do not have process IDs as a resource")
	}
	it := find(t, p.List(newNodeClassWithKubelet(t, `{reservedSystemCPUs: "0", evictionHard: {memory.available: 0%}}`), ""), "c1.4VCPU-8GB")
	left := it.Allocatable()
	g.Expect(left.Cpu().MilliValue()).To(BeEquivalentTo(3000))
	g.Expect(it.Overhead.EvictionThreshold.Memory().IsZero()).To(BeTrue())
}

// TestKubeletConfigurationTooLarge: types without anything left for pods are unavailable;
// the class remains usable.
func TestKubeletConfigurationTooLarge(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	class := newNodeClassWithKubelet(t, `{kubeReserved: {memory: 5Gi}}`)
	g.Expect(p.CheckKubelet(class)).To(Succeed())
	g.Expect(offers(t, p, class, "c1.2VCPU-4GB")).To(Equal("!pve1 !pve2 !pve9"))
	g.Expect(offers(t, p, class, "s1.4VCPU-16GB")).To(Equal("pve1 pve2 pve9"))
	reason := p.UnavailableReasons(class, "c1.2VCPU-4GB")[zone("east", "pve1")]
	g.Expect(reason).To(ContainSubstring("in kubeReserved, systemReserved and eviction thresholds of instance type c1.2VCPU-4GB; want less than its 3788Mi"))
}

// TestCheckKubelet: with an invalid configuration the types keep their defaults, so
// existing Nodes are evaluated as before.
func TestCheckKubelet(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	for text, want := range map[string]string{
		`{maxPod: 50}`:       `spec.kubeletConfiguration.maxPod: found 50; the kubelet's configuration`,
		`{maxPods: cpu * 9}`: `spec.kubeletConfiguration.maxPods: found "cpu * 9"; it is 9 for a VM with 1 vCPUs and 2Gi of memory, want a number from 10 to 250`,
		`{kubeReserved: {memory: memory - 3 * Gi}}`:                                        `it is -1073741824: want 0 or more for a VM with 1 vCPUs and 2Gi of memory`,
		`{kubeReserved: {memory: memory * 2}}`:                                             `want less than its `,
		`{kubeReserved: {cpu: "0"}, systemReserved: {cpu: "0"}, cpuManagerPolicy: static}`: `cpuManagerPolicy: found static; want cpu in kubeReserved or systemReserved`,
	} {
		g.Expect(p.CheckKubelet(newNodeClassWithKubelet(t, text))).To(MatchError(ContainSubstring(want)), "%s: found error", text)
	}
	it := find(t, p.List(newNodeClassWithKubelet(t, `{maxPod: 50}`), ""), "s1.1VCPU-4GB")
	g.Expect(it.Capacity.Pods().Value()).To(BeEquivalentTo(110), "want the defaults of the type")
	g.Expect(it.Overhead.KubeReserved.Memory().Value()).To(Equal(410*mib), "want the defaults of the type")
}

// TestCheckKubeletExact: a VM of exact size may be smaller or larger than all instance types.
func TestCheckKubeletExact(t *testing.T) {
	t.Parallel()
	const small, large = `{kubeReserved: {memory: memory - 3 * Gi / 2}}`, `{maxPods: 10 + cpu * 10}`
	for _, test := range map[string]struct {
		text   string
		sizing v1alpha1.VMSizing
		want   string // empty = valid
	}{
		"smallest":                {small, v1alpha1.VMSizing{}, "it is -536870912: want 0 or more for a VM with 1 vCPUs and 1Gi of memory"},
		"smallest_allowed":        {small, v1alpha1.VMSizing{Min: v1alpha1.VMSize{Memory: "1536Mi"}}, ""},
		"only_types":              {small, v1alpha1.VMSizing{Policy: v1alpha1.VMSizeInstanceType}, ""},
		"largest":                 {large, v1alpha1.VMSizing{Max: v1alpha1.VMSize{CPU: 32}}, "it is 330 for a VM with 32 vCPUs"},
		"largest_allowed":         {large, v1alpha1.VMSizing{}, ""},
		"many_CPUs_little_memory": {`{maxPods: "memory / Gi / cpu >= 2 ? 50 : cpu"}`, v1alpha1.VMSizing{Min: v1alpha1.VMSize{CPU: 4}}, "it is 4 for a VM with 4 vCPUs and 1Gi of memory"},
		"excluded_types":          {`{maxPods: cpu * 9}`, v1alpha1.VMSizing{Min: v1alpha1.VMSize{CPU: 2}}, ""},
	} {
		class := newNodeClassWithKubelet(t, test.text)
		class.Spec.VMSize = test.sizing
		expectError(t, newExactProvider(newViewer()).CheckKubelet(class), test.want)
	}
}

// TestKubeletConfigurationUnchanged: Karpenter caches by object.
func TestKubeletConfigurationUnchanged(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	text := `{kubeReserved: {memory: memory / 16}, logging: {format: json}}`
	first, second := p.List(newNodeClassWithKubelet(t, text), ""), p.List(newNodeClassWithKubelet(t, text), "")
	g.Expect(&first[0]).To(Equal(&second[0]), "an unchanged class has another list")
	changed := p.List(newNodeClassWithKubelet(t, `{kubeReserved: {memory: memory / 8}}`), "")
	g.Expect(find(t, changed, "s1.4VCPU-16GB").Overhead.KubeReserved.Memory().Value()).To(Equal(2*gib), "after the change")
}
