// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package garbagecollection

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
)

// Orphan is a resource whose Claim does not exist.
type Orphan struct {
	Kind, Name string
	// Where it is: a Host, or Kubernetes.
	Where string
	// Command deletes it, run there. It is a comment if that would delete more than the orphan.
	Command string

	delete func() error
}

// inKubernetes is where tokens and Nodes are.
const inKubernetes = "kubernetes"

func driveOrphan(drive deletion.BootDrive, del func() error) Orphan {
	return Orphan{kindBootDrive, drive.Volume, drive.Region + "/" + drive.Host, "pvesm free " + drive.Volume, del}
}

func tokenOrphan(uid types.UID, name string, del func() error) Orphan {
	command := fmt.Sprintf("kubectl -n %s delete secrets -l %s=%s", bootdata.TokenNamespace, bootdata.TokenClaimUIDLabel, uid)
	return Orphan{kindToken, "of " + name, inKubernetes, command, del}
}

func nodeOrphan(name string, del func() error) Orphan {
	return Orphan{kindNode, name, inKubernetes, "kubectl delete node " + name, del}
}

// Find returns the orphans without their grace period, and deletes nothing. It ignores
// DeletionMaxFraction. With an error, it returns those that it found.
func (c *Controller) Find(ctx context.Context) ([]Orphan, error) {
	vms, unread := c.deps.VMs.List()
	found, incomplete := c.listResources(ctx, unread == nil)
	claims, err := c.listClaims(ctx, c.deps.Reader)
	if err != nil {
		return nil, err
	}
	var out []Orphan
	for _, vm := range findOrphans(vms, claims) {
		// The controller reads the tasks.
		vm.IsOurClone = true
		command := vm.DestroyCommand()
		if err := c.deps.Deleter.CheckOrphan(ctx, vm); err != nil {
			command = "# not deleted by the controller: " + err.Error()
		}
		out = append(out, Orphan{Kind: kindVM, Name: fmt.Sprintf("%d (%s)", vm.VMID, vm.Name), Where: vm.Region + "/" + vm.Host, Command: command})
	}
	// Without the VMs: the commands to delete them delete neither boot drives nor tokens.
	return append(out, c.orphanResources(ctx, found, nil, claims)...), errors.Join(unread, incomplete)
}
