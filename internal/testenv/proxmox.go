// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// firstVMID is the first of the VMIDs of our VMs.
const firstVMID = 20000

// Client returns the client of Region.
func (w *Env) Client() proxmox.Client { return w.Clients[Region] }

// VMs returns the guests of Region in our range, as Proxmox lists them now.
func (w *Env) VMs() []proxmox.GuestRow {
	w.T.Helper()
	var out []proxmox.GuestRow
	for _, row := range w.guests() {
		if row.VMID >= firstVMID {
			out = append(out, row)
		}
	}
	return out
}

func (w *Env) guests() []proxmox.GuestRow {
	w.T.Helper()
	resources, err := w.Client().Resources(w.T.Context())
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return resources.Guests
}

// VMConfig returns the configuration of a claim's VM.
func (w *Env) VMConfig(in instance.Intent) proxmox.VMConfig {
	w.T.Helper()
	cfg, err := w.Client().VMConfig(w.T.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return cfg
}

// Running reads from Proxmox whether a claim's VM runs; the list of guests lags behind.
func (w *Env) Running(claim *karpv1.NodeClaim) bool {
	w.T.Helper()
	in := w.Intent(claim)
	state, err := w.Client().VMStatus(w.T.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return state.Running
}

// BootedDrive waits for the boot of a VM and returns the image of its CD-ROM.
func (w *Env) BootedDrive(vmid int) string {
	w.T.Helper()
	var image any
	w.Eventually(func() (ok bool) { image, ok = w.booted.Load(vmid); return ok }).WithTimeout(30 * time.Second).Should(gomega.BeTrue())
	content, ok := image.([]byte)
	w.Expect(ok).To(gomega.BeTrue())
	return string(content)
}

// BootedFirmware waits for the boot of a VM and returns its fw_cfg files by name.
func (w *Env) BootedFirmware(vmid int) map[string][]byte {
	w.T.Helper()
	var files any
	w.Eventually(func() (ok bool) { files, ok = w.firmware.Load(vmid); return ok }).WithTimeout(30 * time.Second).Should(gomega.BeTrue())
	content, ok := files.(map[string][]byte)
	w.Expect(ok).To(gomega.BeTrue())
	return content
}

// PowerOff stops a claim's guest, like a reboot of its Host, and waits until the
// Snapshot shows it.
func (w *Env) PowerOff(claim *karpv1.NodeClaim) {
	w.T.Helper()
	vmid := w.Intent(claim).VMID
	w.Expect(w.Sim.PowerOffGuest(vmid)).To(gomega.Succeed())
	w.Eventually(func() string {
		w.Refresh()
		guest, _ := w.Inventory.View().Guest(Region, vmid)
		return guest.Status
	}).WithTimeout(10 * time.Second).Should(gomega.Equal("stopped"))
}

// BootDrives returns the ISOs on a Host.
func (w *Env) BootDrives(host string) []string {
	w.T.Helper()
	volumes, err := w.Client().Volumes(w.T.Context(), host, "local", "iso")
	w.Expect(err).NotTo(gomega.HaveOccurred())
	var out []string
	for _, volume := range volumes {
		out = append(out, volume.ID)
	}
	return out
}

// DestroyByHand destroys a VM like an administrator.
func (w *Env) DestroyByHand(host string, vmid int) {
	w.T.Helper()
	c := w.Client()
	w.wait(c.StopVM(w.T.Context(), host, vmid))
	w.wait(c.DestroyVM(w.T.Context(), host, vmid))
}

// CloneByHand clones the template like an administrator.
func (w *Env) CloneByHand(host string, vmid int, name string) {
	w.T.Helper()
	w.wait(w.Client().CloneVM(w.T.Context(), proxmox.CloneRequest{Host: host, TemplateID: 9000, VMID: vmid, Name: name}))
}

func (w *Env) wait(task proxmox.UPID, err error) {
	w.T.Helper()
	w.Expect(err).NotTo(gomega.HaveOccurred())
	status, err := proxmox.WaitTask(w.T.Context(), w.Client(), task, proxmox.WaitOptions{Clock: w.Clock})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Expect(status.Err()).NotTo(gomega.HaveOccurred())
}

// AddFault adds a fault to Region's Cluster.
func (w *Env) AddFault(fault pvesim.Fault) {
	w.T.Helper()
	_, err := w.Sim.AddFault(fault)
	w.Expect(err).NotTo(gomega.HaveOccurred())
}

// Disconnect makes every request to Region's Cluster fail until the returned function is called.
func (w *Env) Disconnect() (reconnect func()) {
	w.T.Helper()
	id, err := w.Sim.AddFault(pvesim.Fault{Status: 595, Message: "No route to host"})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return func() { w.Sim.RemoveFault(id) }
}

// foreignGuests returns configuration and power state of all guests that are not ours.
func (w *Env) foreignGuests() map[int]string {
	w.T.Helper()
	out := map[int]string{}
	for _, row := range w.guests() {
		if row.VMID >= firstVMID || row.Kind != proxmox.KindQEMU {
			continue
		}
		cfg, err := w.Client().VMConfig(w.T.Context(), row.Host, row.VMID)
		w.Expect(err).NotTo(gomega.HaveOccurred())
		status, err := w.Client().VMStatus(w.T.Context(), row.Host, row.VMID)
		w.Expect(err).NotTo(gomega.HaveOccurred())
		raw, err := json.Marshal(cfg.Options)
		w.Expect(err).NotTo(gomega.HaveOccurred())
		out[row.VMID] = fmt.Sprintf("%v %s", status.Running, raw)
	}
	return out
}

// ResetForeignGuests accepts the current state of guests that are not ours.
func (w *Env) ResetForeignGuests() { w.foreign = w.foreignGuests() }

// ExpectNoOrphans checks that there is no VM, ISO, volume or token of ours, and that no
// other guest was changed.
func (w *Env) ExpectNoOrphans() {
	w.T.Helper()
	w.Expect(w.VMs()).To(gomega.BeEmpty(), "orphaned VMs")
	w.ExpectNoBootDrives()
	for i := range w.setup.hosts {
		volumes, err := w.Client().Volumes(w.T.Context(), fmt.Sprintf("pve%d", i+1), "local-lvm", "images")
		w.Expect(err).NotTo(gomega.HaveOccurred())
		for _, volume := range volumes {
			w.Expect(volume.VMID).To(gomega.BeNumerically("<", firstVMID), "orphaned volume %s", volume.ID)
		}
	}
	w.ExpectNoTokens()
	w.Expect(w.foreignGuests()).To(gomega.Equal(w.foreign), "another guest was changed")
}

// ExpectNoBootDrives checks that there is no boot drive of ours.
func (w *Env) ExpectNoBootDrives() {
	w.T.Helper()
	for i := range w.setup.hosts {
		for _, volume := range w.BootDrives(fmt.Sprintf("pve%d", i+1)) {
			w.Expect(strings.Contains(volume, "karpenter-")).To(gomega.BeFalse(), "orphaned boot drive %s", volume)
		}
	}
}
