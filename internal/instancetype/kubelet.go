// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/kubelet"
)

// kubeletOverhead computes what the kubelet configuration of a NodeClass changes in the
// capacity and overhead of VMs. nil changes nothing.
type kubeletOverhead struct {
	config *kubelet.Config
	// err is why the configuration is invalid.
	err error
}

// kubeletSize is the kubelet configuration of a VM of one size.
type kubeletSize struct {
	config kubeletconfig.KubeletConfiguration
	err    error
}

func newKubeletOverhead(spec *v1alpha1.KubeletConfiguration) *kubeletOverhead {
	config, err := kubelet.New(spec)
	return &kubeletOverhead{config, err}
}

// For returns the kubelet configuration of a VM. An invalid one has no fields.
func (k *kubeletOverhead) For(cpus int, memoryBytes int64) kubeletSize {
	if k == nil {
		return kubeletSize{}
	}
	if k.err != nil {
		return kubeletSize{err: k.err}
	}
	config, err := k.config.For(kubelet.VM{CPUs: cpus, MemoryBytes: memoryBytes})
	return kubeletSize{config, err}
}

// pods returns the pods of a Node whose instance type allows pods.
func (s kubeletSize) pods(pods int64, cpus int) int64 {
	if s.config.MaxPods > 0 {
		pods = int64(s.config.MaxPods)
	}
	if s.config.PodsPerCore > 0 {
		pods = min(pods, int64(s.config.PodsPerCore)*int64(cpus))
	}
	return pods
}

// overhead returns the overhead of an instance type with the values of the NodeClass.
func (s kubeletSize) overhead(of *cloudprovider.InstanceTypeOverhead, capacity corev1.ResourceList) *cloudprovider.InstanceTypeOverhead {
	out := &cloudprovider.InstanceTypeOverhead{
		KubeReserved:      withReserved(of.KubeReserved, s.config.KubeReserved),
		SystemReserved:    withReserved(of.SystemReserved, s.config.SystemReserved),
		EvictionThreshold: maps.Clone(of.EvictionThreshold),
	}
	if cpus, err := kubelet.ReservedCPUs(s.config); err == nil && cpus.Size() > 0 {
		out.KubeReserved, out.SystemReserved = maps.Clone(out.KubeReserved), maps.Clone(out.SystemReserved)
		delete(out.KubeReserved, corev1.ResourceCPU)
		out.SystemReserved[corev1.ResourceCPU] = *resource.NewQuantity(int64(cpus.Size()), resource.DecimalSI)
	}
	for signal, name := range map[string]corev1.ResourceName{kubelet.SignalMemory: corev1.ResourceMemory, kubelet.SignalNodeFS: corev1.ResourceEphemeralStorage} {
		if hard, ok := s.config.EvictionHard[signal]; ok {
			out.EvictionThreshold[name] = threshold(hard, capacity[name])
		}
		// Pods that use all of their requests are evicted at the soft threshold already.
		if soft, ok := s.config.EvictionSoft[signal]; ok {
			if quantity := threshold(soft, capacity[name]); quantity.Cmp(out.EvictionThreshold[name]) > 0 {
				out.EvictionThreshold[name] = quantity
			}
		}
	}
	return out
}

// withReserved returns a reservation with the values of the NodeClass. Process IDs are
// no resource of Nodes.
func withReserved(list corev1.ResourceList, class map[string]string) corev1.ResourceList {
	if len(class) == 0 {
		return list
	}
	out := maps.Clone(list)
	if out == nil {
		out = corev1.ResourceList{}
	}
	for name, text := range class {
		if quantity, err := resource.ParseQuantity(text); err == nil && name != "pid" {
			out[corev1.ResourceName(name)] = quantity
		}
	}
	return out
}

// threshold returns the quantity of an eviction threshold. The kubelet ignores 0 % and
// 100 %.
func threshold(text string, capacity resource.Quantity) resource.Quantity {
	number, isPercentage := strings.CutSuffix(text, "%")
	if !isPercentage {
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return resource.Quantity{}
		}
		return quantity
	}
	share, err := strconv.ParseFloat(number, 64)
	if err != nil || share == 100 {
		share = 0
	}
	return *resource.NewQuantity(int64(float64(capacity.Value())*share/100), resource.BinarySI)
}

// CheckKubelet returns an error if the kubelet configuration of the NodeClass is invalid
// for VMs of the instance types or of the smallest and largest exact sizes, or leaves nothing
// for pods on any of them.
func (p *Provider) CheckKubelet(nodeClass *v1alpha1.ProxmoxNodeClass) error {
	if nodeClass.Spec.KubeletConfiguration == nil {
		return nil
	}
	params := p.currentList(nodeClass, "").params
	var unusable error
	usable := false
	for _, t := range newSizing(nodeClass.Spec.VMSize, p.deps.VMSizePolicy, 0).typesAndCorners(p.deps.Catalog) {
		if size := params.kubelet.For(t.CPUs, t.MemoryBytes); size.err != nil {
			return size.err
		}
		if err := p.checkKubeletSize(params, t); err != nil {
			unusable = err
		} else {
			usable = true
		}
	}
	if usable {
		return nil
	}
	return unusable
}

// checkKubeletSize returns an error if the kubelet of a VM of the type would not start
// because it reserves too much or too little. It returns nil for an invalid configuration:
// its NodeClass is not ready, and capacity is available.
func (p *Provider) checkKubeletSize(params offeringParams, t Type) error {
	size := params.kubelet.For(t.CPUs, t.MemoryBytes)
	if params.kubelet == nil || size.err != nil {
		return nil //nolint:nilerr // the condition of the NodeClass reports it
	}
	capacity, overhead := p.resources(params, t)
	total := overhead.Total()
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if has, takes := capacity[name], total[name]; takes.Cmp(has) >= 0 {
			return fmt.Errorf("spec.kubeletConfiguration: found %s %s in kubeReserved, systemReserved and eviction thresholds of instance type %s; want less than its %s, which leaves nothing for pods",
				takes.String(), name, t.Name, has.String())
		}
	}
	if size.config.CPUManagerPolicy == "static" && total.Cpu().IsZero() {
		return errors.New("spec.kubeletConfiguration.cpuManagerPolicy: found static; want cpu in kubeReserved or systemReserved, which reserve none")
	}
	return nil
}
