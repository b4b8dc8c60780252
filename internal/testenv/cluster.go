// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Cluster is the simulated Cluster of Region.
type Cluster struct {
	base
	Sim    *pvesim.Simulator
	Client proxmox.Client
	hosts  int
	// booted is what VMs booted with, by VMID.
	booted sync.Map
	// foreign is the state of guests that are not ours when the test started.
	foreign map[int]string
}

// Booted is what a VM booted with: the image of its CD-ROM and its fw_cfg files by name.
type Booted struct {
	CDROM    string
	Firmware map[string][]byte
}

// recordingGuests record what they boot with.
type recordingGuests struct {
	pvesim.GuestRuntime
	cluster *Cluster
}

func (g recordingGuests) Boot(ctx context.Context, m *pvesim.Machine) {
	booted := Booted{Firmware: m.Firmware}
	for _, cd := range m.CDROMs() {
		booted.CDROM = string(cd.Image)
	}
	if booted.CDROM != "" || len(m.Firmware) > 0 {
		g.cluster.booted.Store(m.VMID, booted)
	}
	g.GuestRuntime.Boot(ctx, m)
}

// Booted waits for the boot of a VM with a CD-ROM or firmware files, and returns them.
func (c *Cluster) Booted(vmid int) (booted Booted) {
	c.T.Helper()
	c.Eventually(func() (ok bool) {
		stored, _ := c.booted.Load(vmid)
		booted, ok = stored.(Booted)
		return ok
	}).Should(gomega.BeTrue())
	return booted
}

// VMs returns the guests of Region in our range, as Proxmox lists them now.
func (c *Cluster) VMs() []proxmox.GuestRow {
	c.T.Helper()
	return slices.DeleteFunc(c.guests(), func(row proxmox.GuestRow) bool { return row.VMID < FirstVMID })
}

func (c *Cluster) guests() []proxmox.GuestRow {
	c.T.Helper()
	resources, err := c.Client.Resources(c.T.Context())
	c.Expect(err).NotTo(gomega.HaveOccurred())
	return resources.Guests
}

// VMConfig returns the configuration of a claim's VM.
func (c *Cluster) VMConfig(in instance.Intent) proxmox.VMConfig {
	c.T.Helper()
	cfg, err := c.Client.VMConfig(c.T.Context(), in.Host, in.VMID)
	c.Expect(err).NotTo(gomega.HaveOccurred())
	return cfg
}

// Volumes returns the volumes of a type on a storage of a Host.
func (c *Cluster) Volumes(host, storage, content string) []proxmox.Volume {
	c.T.Helper()
	volumes, err := c.Client.Volumes(c.T.Context(), host, storage, content)
	c.Expect(err).NotTo(gomega.HaveOccurred())
	return volumes
}

// BootDrives returns the ISOs on a Host.
func (c *Cluster) BootDrives(host string) (out []string) {
	c.T.Helper()
	for _, volume := range c.Volumes(host, "local", "iso") {
		out = append(out, volume.ID)
	}
	return out
}

// Disks returns the disks on a Host that have the VMID.
func (c *Cluster) Disks(host string, vmid int) (out []string) {
	c.T.Helper()
	for _, volume := range c.Volumes(host, "local-lvm", "images") {
		if volume.VMID == vmid {
			out = append(out, volume.ID)
		}
	}
	return out
}

// DestroyByHand destroys a VM like an administrator.
func (c *Cluster) DestroyByHand(host string, vmid int) {
	c.T.Helper()
	c.Wait(c.Client.StopVM(c.T.Context(), host, vmid))
	c.Wait(c.Client.DestroyVM(c.T.Context(), host, vmid))
}

// CloneByHand clones the template like an administrator.
func (c *Cluster) CloneByHand(host string, vmid int, name string) {
	c.T.Helper()
	c.Wait(c.Client.CloneVM(c.T.Context(), proxmox.CloneRequest{Host: host, TemplateID: 9000, VMID: vmid, Name: name}))
}

// Wait waits for a task, which must succeed.
func (c *Cluster) Wait(task proxmox.UPID, err error) {
	c.T.Helper()
	c.Expect(err).NotTo(gomega.HaveOccurred())
	status, err := proxmox.WaitTask(c.T.Context(), c.Client, task, proxmox.WaitOptions{Clock: c.Clock})
	c.Expect(err).NotTo(gomega.HaveOccurred())
	c.Expect(status.Err()).NotTo(gomega.HaveOccurred())
}

// AddFault adds a fault.
func (c *Cluster) AddFault(fault pvesim.Fault) {
	c.T.Helper()
	AddFault(c.T, c.Sim, fault)
}

// Disconnect makes every request fail until the returned function is called.
func (c *Cluster) Disconnect() (reconnect func()) {
	c.T.Helper()
	id, err := c.Sim.AddFault(pvesim.Fault{Status: 595, Message: "No route to host"})
	c.Expect(err).NotTo(gomega.HaveOccurred())
	return func() { c.Sim.RemoveFault(id) }
}

// foreignGuests returns the state of all guests that are not ours.
func (c *Cluster) foreignGuests() map[int]string {
	c.T.Helper()
	out := map[int]string{}
	for _, row := range c.guests() {
		if row.VMID < FirstVMID && row.Kind == proxmox.KindQEMU {
			var err error
			out[row.VMID], err = GuestState(c.T.Context(), c.Client, row)
			c.Expect(err).NotTo(gomega.HaveOccurred())
		}
	}
	return out
}

// ResetForeignGuests accepts the current state of guests that are not ours.
func (c *Cluster) ResetForeignGuests() { c.foreign = c.foreignGuests() }

// expectNoGuests checks that there is no VM or volume of ours, and that no other guest was
// changed.
func (c *Cluster) expectNoGuests() {
	c.T.Helper()
	c.Expect(c.VMs()).To(gomega.BeEmpty(), "orphaned VMs")
	for i := range c.hosts {
		for _, volume := range c.Volumes(fmt.Sprintf("pve%d", i+1), "local-lvm", "images") {
			c.Expect(volume.VMID).To(gomega.BeNumerically("<", FirstVMID), "orphaned volume %s", volume.ID)
		}
	}
	c.Expect(c.Sim.HAResources()).NotTo(gomega.HaveKey(gomega.BeNumerically(">=", FirstVMID)), "orphaned HA resources")
	c.Expect(c.Sim.HARules()).NotTo(gomega.ContainElement(gomega.ContainElement(gomega.MatchRegexp(`^vm:[2-9]\d{4}$`))), "orphans in HA rules")
	c.Expect(c.foreignGuests()).To(gomega.Equal(c.foreign), "another guest was changed")
}

// ExpectNoBootDrives checks that there is no boot drive of ours.
func (c *Cluster) ExpectNoBootDrives() {
	c.T.Helper()
	for i := range c.hosts {
		for _, volume := range c.BootDrives(fmt.Sprintf("pve%d", i+1)) {
			c.Expect(strings.Contains(volume, "karpenter-")).To(gomega.BeFalse(), "orphaned boot drive %s", volume)
		}
	}
}
