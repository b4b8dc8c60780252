// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package garbagecollection

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// Orphan is something whose Claim is gone.
type Orphan struct {
	Kind, Name string
	// Where it is: a Host, or Kubernetes.
	Where string
	// Command removes it by hand, there.
	Command string

	remove func() error
}

// inKubernetes is where tokens and Nodes are.
const inKubernetes = "kubernetes"

func driveOrphan(drive instance.BootDrive, remove func() error) Orphan {
	return Orphan{kindBootDrive, drive.Volume, drive.Region + "/" + drive.Host, "pvesm free " + drive.Volume, remove}
}

func tokenOrphan(uid types.UID, name string, remove func() error) Orphan {
	command := fmt.Sprintf("kubectl -n %s delete secrets -l %s=%s", bootdata.TokenNamespace, bootdata.TokenClaimUIDLabel, uid)
	return Orphan{kindToken, "of " + name, inKubernetes, command, remove}
}

func nodeOrphan(name string, remove func() error) Orphan {
	return Orphan{kindNode, name, inKubernetes, "kubectl delete node " + name, remove}
}

// destroy is the command that removes a VM by hand.
func destroy(vm instance.VM) string {
	return fmt.Sprintf("qm stop %d && qm destroy %d --purge", vm.VMID, vm.VMID)
}

// Find tells what would be removed now, were the grace period over, and removes
// nothing. The brake is left to Reconcile: who asks wants to see all.
func (c *Controller) Find(ctx context.Context) ([]Orphan, error) {
	vms, err := c.Instances.List()
	if err != nil {
		return nil, err
	}
	found := c.look(ctx)
	claims, err := c.claims(ctx, c.Reader)
	if err != nil {
		return nil, err
	}
	var out []Orphan
	for _, vm := range vms {
		if claims[vm.ClaimUID] == nil {
			out = append(out, Orphan{Kind: kindVM, Name: fmt.Sprintf("%d (%s)", vm.VMID, vm.Name), Where: vm.Region + "/" + vm.Host, Command: destroy(vm)})
		}
	}
	return append(out, c.unclaimed(ctx, found, vms, claims)...), nil
}
