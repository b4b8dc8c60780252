// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// movedEnv is an Env with a VM whose host failed before its boot drive was deleted. HA moved the
// VM to the other host.
type movedEnv struct {
	*testenv.Env
	p     *testenv.Process
	claim *karpv1.NodeClaim
	in    instance.Intent
	// host is where the VM is now.
	host string
}

// newMovedEnv returns a movedEnv whose boot drive is on the local storage "local" or on the
// shared storage "nas".
func newMovedEnv(t *testing.T, storage string) movedEnv {
	t.Helper()
	w := testenv.NewFake(t, testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Storages = append(s.Storages, pvesim.Storage{ID: "nas", Type: "nfs", Content: []string{"iso"}, Shared: true, Size: pvesim.TiB})
	}))
	w.NodeClass.Spec.MetadataOptions.Storage = storage
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Launched("pool-abc", w.NodeClass)
	m := movedEnv{Env: w, p: p, claim: claim, in: w.Intent(claim)}
	m.host = testenv.OtherHost(m.in.Host)
	w.Expect(m.in.ISOStorage).To(Equal(storage))
	w.Expect(m.isos(m.in.Host)).To(HaveLen(1))
	w.Expect(w.Sim.HostDown(m.in.Host, "refused")).To(Succeed())
	w.Expect(w.Sim.MigrateGuest(m.in.VMID, m.host)).To(Succeed())
	p.Refresh()
	guest, _ := p.Inventory.View().Guest(m.in.Region, m.in.VMID)
	w.Expect(guest.Host).To(Equal(m.host))
	w.Expect(p.Inventory.View().Snapshots[m.in.Region].Hosts[m.in.Host].Online).To(BeFalse())
	return m
}

// isos returns the ISOs on the storage of the boot drive.
func (m movedEnv) isos(host string) []proxmox.Volume {
	m.T.Helper()
	volumes, err := m.Client.Volumes(m.T.Context(), host, m.in.ISOStorage, "iso")
	m.Expect(err).NotTo(HaveOccurred())
	return volumes
}

// powerOn powers the host of the launch on, and waits until its storage is available.
func (m movedEnv) powerOn() {
	m.T.Helper()
	m.Expect(m.Sim.HostUp(m.in.Host)).To(Succeed())
	m.Eventually(func() bool {
		m.p.Refresh()
		storage, _ := m.p.Inventory.View().Storage(m.in.Region, m.in.Host, m.in.ISOStorage)
		return storage.Available
	}).Should(BeTrue())
}

// Another host deletes a boot drive on a shared storage.
func TestDeleteBootDriveOnSharedStorage(t *testing.T) {
	t.Parallel()
	m := newMovedEnv(t, "nas")
	m.p.Delete(m.claim)
	m.Expect(m.VMs()).To(BeEmpty())
	m.Expect(m.isos(m.host)).To(BeEmpty())
	m.ExpectNoTokens()
}

// The deletion does not wait for the host that has the boot drive. Garbage collection finds the
// boot drive when the host is back.
func TestDeleteBootDriveOfOfflineHost(t *testing.T) {
	t.Parallel()
	m := newMovedEnv(t, "local")
	m.p.Delete(m.claim)
	m.Expect(m.VMs()).To(BeEmpty())
	m.ExpectNoTokens()

	m.powerOn()
	drives, err := m.p.Instances.Deleter.ListBootDrives(t.Context())
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(drives).To(ConsistOf(And(HaveField("ClaimUID", string(m.claim.UID)), HaveField("Host", m.in.Host))))
	m.Expect(m.p.Instances.Deleter.DeleteBootDrive(t.Context(), drives[0])).To(Succeed())
	m.ExpectNoBootDrives()
}

func TestCleanupBootDriveOnSharedStorage(t *testing.T) {
	t.Parallel()
	m := newMovedEnv(t, "nas")
	m.Expect(m.p.Instances.Deleter.CleanupBootDrive(t.Context(), m.claim)).To(Succeed())
	m.Expect(m.Stored(m.claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationBootDataStatus, v1alpha1.BootDataInitialized))
	m.Expect(m.isos(m.host)).To(BeEmpty())
	m.ExpectNoTokens()
}

// The join token is revoked although the boot drive cannot be deleted until its host is back.
func TestCleanupBootDriveOfOfflineHost(t *testing.T) {
	t.Parallel()
	m := newMovedEnv(t, "local")
	m.Expect(m.p.Tokens()).To(HaveLen(1))
	m.Expect(m.p.Instances.Deleter.CleanupBootDrive(t.Context(), m.claim)).To(MatchError(proxmox.ErrHostUnreachable))
	m.Expect(m.Stored(m.claim).Annotations).NotTo(HaveKeyWithValue(v1alpha1.AnnotationBootDataStatus, v1alpha1.BootDataInitialized))
	m.ExpectNoTokens()

	m.powerOn()
	m.Expect(m.p.Instances.Deleter.CleanupBootDrive(t.Context(), m.claim)).To(Succeed())
	m.Expect(m.isos(m.in.Host)).To(BeEmpty())
}

// A host that responds is used, even if the last poll shows it as offline.
func TestCleanupBootDriveOfReturnedHost(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Launched("pool-abc", w.NodeClass)
	host := w.Intent(claim).Host
	w.Expect(w.Sim.HostDown(host, "refused")).To(Succeed())
	p.Refresh()
	w.Expect(w.Sim.HostUp(host)).To(Succeed())
	w.Expect(p.Instances.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
	w.ExpectNoBootDrives()
}
