// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// pinnedKubelet has the kubelet hand whole CPUs to the pods that ask for them, where
// the VM has cores of its own: exclusive cores that the kubelet shares again would
// be for nothing. What the NodeClass says stands. The CPUs that stay with the
// system are those of the overhead, rounded up by the kubelet itself: naming them
// would change what the Node has to give, which the scheduler was told already.
func pinnedKubelet(settings bootdata.KubeletSettings, in Intent, overhead cloudprovider.InstanceTypeOverhead) bootdata.KubeletSettings {
	reserved := !overhead.KubeReserved.Cpu().IsZero() || !overhead.SystemReserved.Cpu().IsZero()
	if in.Binding == nil || in.Binding.CPUs == "" || !reserved {
		return settings
	}
	if settings.CPUManagerPolicy == "" {
		settings.CPUManagerPolicy = "static"
	}
	if settings.TopologyManagerPolicy == "" {
		settings.TopologyManagerPolicy = "best-effort"
	}
	return settings
}
