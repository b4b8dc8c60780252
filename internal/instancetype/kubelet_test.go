// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// newNodeClassWithKubelet returns a class with a kubelet configuration in YAML.
func newNodeClassWithKubelet(t *testing.T, text string) *v1alpha1.ProxmoxNodeClass {
	t.Helper()
	class := newNodeClassWithAllHosts()
	if err := yaml.Unmarshal([]byte(text), &class.Spec.KubeletConfiguration); err != nil {
		t.Fatal(err)
	}
	return class
}

// TestKubeletConfigurationInOfferings: the scheduler plans with what the kubelet of each
// size reserves.
func TestKubeletConfigurationInOfferings(t *testing.T) {
	t.Parallel()
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
		if eviction.Memory().Value()/mib != want.evictionMiB || eviction.StorageEphemeral().Value() != 2*gib {
			t.Errorf("%s evicts at %s memory and %s disk, want 5 %% of %s and the soft 2Gi", name, eviction.Memory(), eviction.StorageEphemeral(), it.Capacity.Memory())
		}
		if system.Cpu().MilliValue() != 200 || system.Memory().Value() != 64*mib {
			t.Errorf("%s reserves %s CPU and %s memory for the system, want 200m and the default of 64 MiB", name, system.Cpu(), system.Memory())
		}
		if _, ok := kube["pid"]; ok {
			t.Errorf("%s reserves process IDs, which Nodes do not have as a resource", name)
		}
	}
}

func TestKubeletReservedCPUs(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t, newViewer())
	it := find(t, p.List(newNodeClassWithKubelet(t, `{reservedSystemCPUs: "0", evictionHard: {memory.available: 0%}}`), ""), "c1.4VCPU-8GB")
	if left := it.Allocatable(); left.Cpu().MilliValue() != 3000 || !it.Overhead.EvictionThreshold.Memory().IsZero() {
		t.Errorf("%s CPUs are left and %s memory is kept free, want 3 and 0", left.Cpu(), it.Overhead.EvictionThreshold.Memory())
	}
}

// TestKubeletConfigurationTooLarge: types without anything left for pods are unavailable;
// the class remains usable.
func TestKubeletConfigurationTooLarge(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t, newViewer())
	class := newNodeClassWithKubelet(t, `{kubeReserved: {memory: 5Gi}}`)
	if err := p.CheckKubelet(class); err != nil {
		t.Fatal(err)
	}
	list := p.List(class, "")
	if small, large := find(t, list, "c1.2VCPU-4GB"), find(t, list, "s1.4VCPU-16GB"); len(available(small)) > 0 || len(available(large)) == 0 {
		t.Errorf("available: %v and %v, want only the type that has the memory", available(small), available(large))
	}
	reason := p.UnavailableReasons(class, "c1.2VCPU-4GB")[zone("east", "pve1")]
	if want := "in kubeReserved, systemReserved and eviction thresholds of instance type c1.2VCPU-4GB; want less than its 3788Mi"; !strings.Contains(reason, want) {
		t.Errorf("the reason is %q, want %q", reason, want)
	}
}

// available returns the Hosts where a type is available.
func available(it *cloudprovider.InstanceType) []string {
	var hosts []string
	for host, ok := range availability(it) {
		if ok {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// TestCheckKubelet: with an invalid configuration the types keep their defaults, so
// existing Nodes are evaluated as before.
func TestCheckKubelet(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t, newViewer())
	for text, want := range map[string]string{
		`{maxPod: 50}`:       `spec.kubeletConfiguration.maxPod: found 50; the kubelet's configuration`,
		`{maxPods: cpu * 9}`: `spec.kubeletConfiguration.maxPods: found "cpu * 9"; it is 9 for a VM with 1 vCPUs and 2Gi of memory, want a number from 10 to 250`,
		`{kubeReserved: {memory: memory - 3 * Gi}}`:                                        `it is -1073741824: want 0 or more for a VM with 1 vCPUs and 2Gi of memory`,
		`{kubeReserved: {memory: memory * 2}}`:                                             `want less than its `,
		`{kubeReserved: {cpu: "0"}, systemReserved: {cpu: "0"}, cpuManagerPolicy: static}`: `cpuManagerPolicy: found static; want cpu in kubeReserved or systemReserved`,
	} {
		class := newNodeClassWithKubelet(t, text)
		if err := p.CheckKubelet(class); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: found error %v, want %q", text, err, want)
		}
	}
	it := find(t, p.List(newNodeClassWithKubelet(t, `{maxPod: 50}`), ""), "s1.1VCPU-4GB")
	if it.Capacity.Pods().Value() != 110 || it.Overhead.KubeReserved.Memory().Value() != 410*mib {
		t.Errorf("%s pods and %s reserved, want the defaults of the type", it.Capacity.Pods(), it.Overhead.KubeReserved.Memory())
	}
}

// TestCheckKubeletExact: a VM of exact size may be smaller or larger than all instance types.
func TestCheckKubeletExact(t *testing.T) {
	t.Parallel()
	const small, large = `{kubeReserved: {memory: memory - 3 * Gi / 2}}`, `{maxPods: 10 + cpu * 10}`
	for name, test := range map[string]struct {
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
		switch err := newExactProvider(t, newViewer()).CheckKubelet(class); {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: found error %v, want %q", name, err, test.want)
		}
	}
}

// TestKubeletConfigurationUnchanged: Karpenter caches by object.
func TestKubeletConfigurationUnchanged(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t, newViewer())
	text := `{kubeReserved: {memory: memory / 16}, logging: {format: json}}`
	first, second := p.List(newNodeClassWithKubelet(t, text), ""), p.List(newNodeClassWithKubelet(t, text), "")
	if &first[0] != &second[0] {
		t.Error("an unchanged class has another list")
	}
	changed := p.List(newNodeClassWithKubelet(t, `{kubeReserved: {memory: memory / 8}}`), "")
	if memory := find(t, changed, "s1.4VCPU-16GB").Overhead.KubeReserved[corev1.ResourceMemory]; memory.Value() != 2*gib {
		t.Errorf("%s is reserved after the change, want 2Gi", memory.String())
	}
}
