// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/uuid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// sampleToken stands in for a join token: none is issued for a look.
const sampleToken = "abcdef.0123456789abcdef"

// Preview renders what a VM of a NodeClass would find on its boot drive. With a
// Claim it is that Claim's VM, as far as its launch has got; without one an
// imaginary VM. The join token is a sample in either case.
func (b BootSource) Preview(ctx context.Context, class *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim) (bootdata.Files, error) {
	intent := Intent{
		Region: "region", Host: "host", VMID: v1alpha1.MinVMID, InstanceType: "sample", Cores: 1, MemoryMiB: 1024,
	}
	if claim == nil {
		claim = sampleClaim(class)
		intent.MACs, intent.Network = sampleNetwork(class)
	} else if planned, ok, err := ReadIntent(claim); err != nil {
		return bootdata.Files{}, err
	} else if ok {
		intent = planned
	}
	source, err := b.read(ctx, class.Spec.MetadataOptions)
	if err != nil {
		return bootdata.Files{}, err
	}
	rootCA, err := b.rootCA(ctx)
	if err != nil {
		return bootdata.Files{}, err
	}
	data, err := bootData(bootRequest{
		class: class, claim: claim, intent: intent,
		// What every instance type has: some settings of the kubelet need it.
		overhead: cloudprovider.InstanceTypeOverhead{KubeReserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
		values:   source.values, token: sampleToken, rootCA: rootCA, version: b.Version,
	})
	if err != nil {
		return bootdata.Files{}, err
	}
	return source.render(data)
}

// sampleClaim stands in for a Claim when templates are only tried out.
func sampleClaim(class *v1alpha1.ProxmoxNodeClass) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{}
	claim.Name = class.Name + "-sample"
	claim.UID = uuid.NewUUID()
	claim.Labels = map[string]string{karpv1.NodePoolLabelKey: "sample"}
	return claim
}
