// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"math"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/kubelet"
)

// newKubeletConfiguration returns the config file of the VM's kubelet: the fields of the
// NodeClass with the values of their expressions, and those that the provider sets.
func newKubeletConfiguration(r Request, taints bootdata.Taints) (bootdata.KubeletConfiguration, error) {
	class, err := kubelet.New(r.Class.Spec.KubeletConfiguration)
	if err != nil {
		return bootdata.KubeletConfiguration{}, err
	}
	config, err := class.For(kubelet.VM{CPUs: r.Intent.Cores, MemoryBytes: int64(r.Intent.MemoryMiB) << 20})
	if err != nil && r.Intent.InstanceType == sampleInstanceType {
		// No VM may have the size of the sample.
		config, err = class.Fixed(), nil
	}
	if err != nil {
		return bootdata.KubeletConfiguration{}, err
	}
	return bootdata.NewKubeletConfiguration(bootdata.KubeletInput{
		Config: withPinning(config, r.Intent, r.Overhead), ProviderID: r.Intent.ProviderID(), Taints: taints,
		KubeReserved: r.Overhead.KubeReserved, SystemReserved: r.Overhead.SystemReserved, EvictionHard: r.Overhead.EvictionThreshold,
		MaxPods: int32(min(r.Capacity.Pods().Value(), math.MaxInt32)), //nolint:gosec // at most MaxInt32
	})
}

// withPinning makes the kubelet assign whole CPUs to pods that request them if the VM
// is pinned to cores: exclusive cores would have no effect if the kubelet shared them.
// Settings of the NodeClass take precedence. The CPUs that stay with the system are
// those of the overhead, rounded up by the kubelet itself: setting them would change the
// Node's allocatable CPUs, which the scheduler already has.
func withPinning(config kubeletconfig.KubeletConfiguration, in instance.Intent, overhead cloudprovider.InstanceTypeOverhead) kubeletconfig.KubeletConfiguration {
	reserved := !overhead.KubeReserved.Cpu().IsZero() || !overhead.SystemReserved.Cpu().IsZero()
	if in.Binding == nil || in.Binding.CPUs == "" || !reserved {
		return config
	}
	if config.CPUManagerPolicy == "" {
		config.CPUManagerPolicy = "static"
	}
	if config.TopologyManagerPolicy == "" {
		config.TopologyManagerPolicy = "best-effort"
	}
	return config
}
