// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestDisks checks that VMs have the disks of their class, that guests mount them, and that they
// are deleted with the VM.
func TestDisks(t *testing.T) {
	t.Parallel()
	needs(t, simulator("its storages are known"))
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			newEnv(t, setup{version: version}).checkDisks(t)
		})
	}
}

func (e *env) checkDisks(t *testing.T) {
	before, err := e.holdings(t.Context())
	must(t, err)
	p := e.newNodePool(t, "disks", func(kit *harness.Kit) {
		spec := &kit.Class.Spec
		spec.BootDevice.DiskOptions = v1alpha1.DiskOptions{SSD: new(true), WriteLimit: &v1alpha1.DiskLimit{MBps: 100}}
		spec.Disks = []v1alpha1.Disk{
			{Name: "kubelet", Size: "60Gi", StorageSelector: "storage.type == 'lvmthin'", MountPath: "/var/lib/kubelet"},
			{Name: "raw", Size: "5Gi", Bus: v1alpha1.DiskBusVirtIO, Storages: []string{"missing", "local-lvm"}},
		}
	})
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	vm := vmOf(t, p, claim)
	drive := func(slot string) proxmox.Drive { return proxmox.ParseDrive(slot, fmt.Sprint(vm.Config[slot])) }
	if boot := drive("scsi0").Properties; boot.Value("ssd") != "1" || boot.Value("mbps_wr") != "100" || boot.Value("backup") != "0" {
		t.Errorf("the boot disk has the options %v, want those of the class", boot)
	}
	for slot, want := range map[string]struct {
		name string
		gib  int64
	}{"scsi1": {"kubelet", 60}, "virtio1": {"raw", 5}} {
		if d := drive(slot); d.Storage != "local-lvm" || d.SizeBytes != want.gib<<30 || d.Properties.Value("serial") != want.name {
			t.Errorf("disk %s is %v, want disk %s of %d GiB on local-lvm", slot, d, want.name, want.gib)
		}
	}
	node := &corev1.Node{}
	must(t, e.kube.Get(t.Context(), client.ObjectKey{Name: claim.Status.NodeName}, node))
	if got := node.Status.Capacity.StorageEphemeral().Value(); got < 55<<30 || got < claim.Status.Capacity.StorageEphemeral().Value() {
		t.Errorf("the node has %d bytes of ephemeral storage, want those of the disk of 60 GiB, and at least the %d of its claim", got, claim.Status.Capacity.StorageEphemeral().Value())
	}
	p.deleteAllClaims(t)
	if !t.Failed() {
		e.expectUnchanged(t, before)
	}
}
