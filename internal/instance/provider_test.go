// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestListIgnoresCopies(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	c := w.Client
	cfg, err := c.VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	// A copy keeps the notes; a restored backup keeps notes and UUID.
	w.CloneByHand(in.Host, 30000, "copy")
	w.Expect(c.UpdateVM(t.Context(), in.Host, 30000, proxmox.ConfigChange{Set: map[string]string{
		"description": cfg.Description(), "smbios1": cfg.SMBIOS().Encode(),
	}})).To(Succeed())
	w.Expect(p.Inventory.Refresh(t.Context(), testenv.Region)).To(Succeed())
	w.Consistently(func() []instance.VM {
		vms, err := p.Instances.VMs.List()
		w.Expect(err).NotTo(HaveOccurred())
		return vms
	}).WithTimeout(500 * time.Millisecond).ShouldNot(ContainElement(HaveField("VMID", 30000)))
	p.Delete(claim)
	_, err = c.VMConfig(t.Context(), in.Host, 30000)
	w.Expect(err).NotTo(HaveOccurred(), "the copy still exists")
}

func TestListOtherKubernetesCluster(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	own, other := w.StartProcess(), w.StartProcess(testenv.KubeCluster("another-kubernetes-cluster"))
	claim := own.Launched("pool-abc", w.NodeClass)
	w.Expect(other.Inventory.Refresh(t.Context(), testenv.Region)).To(Succeed())
	w.Eventually(func() error { return own.Inventory.Refresh(t.Context(), testenv.Region) }).Should(Succeed())
	w.Eventually(own.Instances.VMs.List).Should(HaveLen(1))
	w.Expect(other.Instances.VMs.List()).To(BeEmpty())
	deleted, err := other.Instances.Deleter.Delete(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(deleted).To(BeTrue(), "for them it does not exist")
	w.Expect(w.VMs()).To(HaveLen(1), "it still exists")
}

// The VM is migrated after it was listed and before its configuration is read.
func TestGetMigratedVM(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
	w.AddFault(pvesim.Fault{Method: "GET", Path: fmt.Sprintf("/nodes/%s/qemu/%d/config", in.Host, in.VMID), Count: 1, Status: 500,
		Message: fmt.Sprintf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", in.Host, in.VMID)})
	vm, err := p.Instances.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(vm.VMID).To(Equal(in.VMID))
}

func TestGetUnreachableCluster(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	id := v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID}
	_, err := p.Instances.VMs.Get(t.Context(), id)
	w.Expect(err).NotTo(HaveOccurred())
	// An unreachable Cluster does not mean that the VM is deleted.
	_, err = w.Sim.AddFault(pvesim.Fault{Path: "/cluster/resources", Status: 596, Message: "Connection timed out"})
	w.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = p.Instances.VMs.Get(ctx, id)
	w.Expect(err).To(HaveOccurred())
	w.Expect(errors.Is(err, proxmox.ErrNotFound)).To(BeFalse(), "%v", err)
	w.Sim.ClearFaults()
	p.Delete(claim)
	_, err = p.Instances.VMs.Get(t.Context(), id)
	w.Expect(err).To(MatchError(proxmox.ErrNotFound))
}
