// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	// outsideVM and insideVM are guests of other users, outside and inside of our range of VMIDs.
	outsideVM, insideVM = 101, 20500
	// upstreamVM is a VM of another controller, which writes the same serial, and upstreamClaim its NodeClaim.
	upstreamVM, upstreamClaim = 20600, "upstream"
	// foreignUUID is the SMBIOS UUID of these guests.
	foreignUUID = "7d1f9a3c-2f5e-4b8a-9a51-3c1d5e7f9b11"
)

// foreignGuests adds the guests of other users.
func foreignGuests(s *pvesim.Scenario) {
	add := func(vmid int, serial string) {
		s.Guests = append(s.Guests, pvesim.Guest{
			VMID: vmid, Name: fmt.Sprintf("foreign-%d", vmid), Host: "pve1", Status: "running",
			Config: map[string]string{"memory": "1024", "cores": "1", "smbios1": proxmox.SMBIOS{UUID: foreignUUID, Serial: serial}.Encode()},
		})
	}
	add(insideVM, "")
	add(upstreamVM, fmt.Sprintf("h=%s;i=%d", upstreamClaim, upstreamVM))
	for i := range s.Guests {
		if s.Guests[i].VMID == outsideVM {
			s.Guests[i].Config["smbios1"] = proxmox.SMBIOS{UUID: foreignUUID}.Encode()
		}
	}
}

// A user who may only edit the notes of VMs cannot have a VM destroyed.
func TestForgedMark(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]struct {
		vmid int
		mark ownership.Mark
		why  string
	}{
		"outside_range":                       {outsideVM, ownership.Mark{ClaimUID: "x"}, "VMID"},
		"outside_range_with_UUID_of_the_VM":   {outsideVM, ownership.Mark{ClaimUID: foreignUUID}, "VMID"},
		"inside_range":                        {insideVM, ownership.Mark{ClaimUID: "x"}, "no task"},
		"inside_range_with_UUID_of_the_VM":    {insideVM, ownership.Mark{ClaimUID: foreignUUID}, "no task"},
		"inside_range_as_adopted":             {insideVM, ownership.Mark{ClaimUID: "x", UUID: foreignUUID}, "adopted"},
		"other_controller_as_adopted":         {upstreamVM, ownership.Mark{ClaimUID: "x", UUID: foreignUUID}, upstreamClaim},
		"other_controller_with_UUID_of_a_VM":  {upstreamVM, ownership.Mark{ClaimUID: foreignUUID}, upstreamClaim},
		"inside_range_with_UID_of_live_claim": {insideVM, ownership.Mark{ClaimUID: "live"}, "no task"},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			c := newCollector(t, testenv.Scenario(foreignGuests))
			class := c.Class()
			live := c.Launched("live", class)
			testenv.ModifyStatus(c.Env, c.Claim(upstreamClaim, class), func(claim *karpv1.NodeClaim) {
				claim.Status.ProviderID = fmt.Sprintf("proxmox://region-1/%d", upstreamVM)
			})
			attack.mark.VMID, attack.mark.KubeCluster = attack.vmid, c.KubeCluster
			if attack.mark.ClaimUID == "live" {
				attack.mark.ClaimUID = string(live.UID)
			}
			at := instance.Intent{Host: "pve1", VMID: attack.vmid}
			c.Expect(c.Client.UpdateVM(c.Context(), "pve1", attack.vmid, proxmox.ConfigChange{Set: map[string]string{"description": attack.mark.Notes("web server")}})).To(Succeed())
			before := c.VMConfig(at)
			c.Restart(true) // it reads the configuration
			c.start(func(*garbagecollection.Deps) {})
			for range 20 {
				c.run()
				c.Clock.Advance(grace)
			}
			c.Expect(c.VMConfig(at)).To(Equal(before))
			c.Expect(c.Client.VMStatus(c.Context(), "pve1", attack.vmid)).To(HaveField("Running", true))
			c.Expect(c.Events.Emitted(v1alpha1.EventOrphanedVM)).To(ContainElement(And(
				ContainSubstring(fmt.Sprintf("VM %d ", attack.vmid)), ContainSubstring(attack.why), ContainSubstring(fmt.Sprintf("qm destroy %d --purge", attack.vmid)))))
			c.Expect(c.Running(live)).To(BeTrue())
			c.Expect(c.Tokens()).To(ContainElement(live.Name), "a forged mark revokes no token")
		})
	}
}

// cloneUnconfigured clones a VM with the mark of a claim like a launch that ends before the configuration.
func (c *collector) cloneUnconfigured(client proxmox.Client, vmid int, claimUID string) {
	c.T.Helper()
	mark := ownership.Mark{VMID: vmid, KubeCluster: c.KubeCluster, ClaimUID: claimUID}
	c.Wait(client.CloneVM(c.Context(), proxmox.CloneRequest{Host: "pve1", TemplateID: 9000, VMID: vmid, Name: "clone", Description: mark.Notes("")}))
}

// withAdministrator has an API token of an administrator, who may do everything.
func withAdministrator(s *pvesim.Scenario) {
	for i := range s.Users {
		if s.Users[i].ID == "root@pam" {
			s.Users[i].Tokens = []pvesim.Token{{ID: "admin", Secret: "secret"}}
		}
	}
}

func administrator(w *testenv.Env) proxmox.Client {
	config := testenv.ClusterConfig(w.Sim, testenv.Region)
	config.TokenID, config.TokenSecret = "root@pam!admin", "secret"
	return testenv.NewClient(w.T, w.Sim, config)
}

// A clone that was never configured has the UUID of no claim. It is deleted if our user cloned it.
func TestDeleteUnconfiguredClone(t *testing.T) {
	const ours, theirs, reused = 20700, 20701, 20702
	garbageCollectionSimulated(t, testenv.With(testenv.Scenario(withAdministrator)), func(c *collector) {
		admin := administrator(c.Env)
		c.cloneUnconfigured(c.Client, ours, "a")
		c.cloneUnconfigured(admin, theirs, "b")
		// The VMID of a clone that we destroyed is used by another user.
		c.cloneUnconfigured(c.Client, reused, "c")
		c.Wait(c.Client.DestroyVM(c.Context(), "pve1", reused))
		c.cloneUnconfigured(admin, reused, "c")
		poll := func() {
			c.run()
			c.Clock.Advance(10 * time.Second)
		}
		c.Eventually(func() []proxmox.GuestRow { poll(); return c.VMs() }).Should(HaveLen(2))
		c.Sim.ResetRequests()
		for range 6 * 10 {
			poll()
		}
		c.Expect(c.VMs()).To(ConsistOf(HaveField("VMID", theirs), HaveField("VMID", reused)))
		c.Expect(c.Sim.CountRequests("GET", "/nodes/{node}/tasks")).To(BeNumerically("<=", 5), "tasks are read within the call budget")
	})
}

// A claim got another VMID, for example because a restarted controller did not see the plan. A claim whose
// providerID is not stored yet may have any VM.
func TestDeleteVMOfOtherVMID(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		claim := c.Launched("a", c.Class())
		vmid := c.Intent(claim).VMID
		setProviderID := func(id string) {
			testenv.ModifyStatus(c.Env, claim, func(claim *karpv1.NodeClaim) { claim.Status.ProviderID = id })
			c.runAfterGrace()
		}
		setProviderID("")
		c.Expect(c.VMs()).To(HaveLen(1))
		setProviderID("proxmox://region-1/20900")
		c.Expect(c.VMs()).To(BeEmpty())
		c.Expect(c.Events.Messages("OrphanedVMDeleted")).To(ConsistOf(ContainSubstring("VM %d ", vmid)))
		c.Expect(c.Tokens()).To(ConsistOf(claim.Name), "the claim still needs it")
		c.Expect(c.BootDrives("pve1")).To(HaveLen(1), "the name of the boot drive is that of the claim")
	})
}

// Two VMs have the mark and the UUID of one claim.
func TestDuplicateVM(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]int{"claim_exists": 1, "claim_deleted": 0} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			c := newCollector(t)
			claim := c.Launched("a", c.Class())
			in := c.Intent(claim)
			c.Expect(c.Sim.RestoreCopy(in.VMID, 20900)).To(Succeed())
			mark := ownership.Mark{VMID: 20900, KubeCluster: c.KubeCluster, ClaimUID: string(claim.UID)}
			change := proxmox.ConfigChange{Set: map[string]string{
				"description": mark.Notes(""), "smbios1": proxmox.SMBIOS{UUID: string(claim.UID), Serial: "h=a;i=20900"}.Encode(),
			}}
			c.Expect(c.Client.UpdateVM(c.Context(), in.Host, 20900, change)).To(Succeed())
			if left == 0 {
				c.orphan(claim)
			}
			for range 3 {
				c.runAfterGrace()
			}
			c.Expect(c.VMs()).To(HaveLen(2))
			c.Expect(c.Events.Messages(v1alpha1.EventDuplicateVM)).To(ContainElement(And(ContainSubstring(fmt.Sprint(in.VMID)), ContainSubstring("20900"))))
			c.DestroyByHand(in.Host, 20900)
			c.Clock.Advance(time.Minute)
			c.runAfterGrace()
			c.Expect(c.VMs()).To(HaveLen(left))
		})
	}
}

// abandon finishes a claim without its VM, which an administrator allowed.
func (c *collector) abandon(claim *karpv1.NodeClaim, host string) {
	c.T.Helper()
	c.Fence(host)
	deleted, err := c.Instances.Deleter.Delete(c.T.Context(), claim)
	c.Expect(deleted).To(BeTrue())
	c.Expect(err).To(MatchError(ContainSubstring("is fenced")))
	c.orphan(claim)
}

// The claims of a fenced Host were finished without their VMs. These are deleted when the
// Host is back, although they are most of all VMs. One claim was restored from a list that was
// older than its end, while Proxmox still lists its VM.
func TestDeleteFencedVMs(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(testenv.Hosts(2)), func(c *collector) {
		class := c.Class(func(class *v1alpha1.ProxmoxNodeClass) { class.Spec.PlacementStrategy.PoolAffinity = "SameHost" })
		var claims []*karpv1.NodeClaim
		for _, name := range []string{"a", "b", "c", "d"} {
			claims = append(claims, c.Launched(name, class))
		}
		host := c.Intent(claims[0]).Host
		c.Expect(c.Sim.HostDown(host, "noroute")).To(Succeed())
		c.Refresh()
		listed := *claims[0].DeepCopy()
		for _, claim := range claims {
			c.Expect(c.Intent(claim).Host).To(Equal(host))
			c.abandon(claim, host)
		}
		c.Instances.Planner.RestoreReservation(listed)
		c.Expect(c.Inventory.View().Reservations).To(HaveKey(string(listed.UID)))
		c.run()
		c.Sim.ResetRequests()
		c.runAfterGrace()
		c.Expect(c.Sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/config")).To(BeZero(), "no request to a host that is offline")
		c.Expect(c.VMs()).To(HaveLen(4))
		c.Expect(c.Inventory.View().Reservations).To(BeEmpty())

		c.Expect(c.Sim.HostUp(host)).To(Succeed())
		c.runUntilEmpty(c.vms)
		c.runUntilEmpty(func() any { return c.BootDrives(host) })
		c.ExpectNoTokens()
	})
}

// The region of a claim was renamed in the cloud config. Its VM is not an orphan, until an
// administrator gives it up.
func TestDeleteVMOfRenamedRegion(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		claim := c.Launched("a", c.Class())
		c.Clients = map[string]proxmox.Client{"renamed": testenv.NewClient(c.T, c.Sim, testenv.ClusterConfig(c.Sim, "renamed"))}
		c.Restart(true)
		c.start(func(*garbagecollection.Deps) {})
		c.runAfterGrace()
		c.Expect(c.VMs()).To(HaveLen(1))

		c.abandon(claim, "pve1")
		c.runAfterGrace()
		c.Expect(c.VMs()).To(BeEmpty())
	})
}

// An orphan that must not be deleted is reported with the reason, and deleted when it may be.
func TestBlockedOrphan(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		orphan := c.orphan(c.Launched("orphan", c.Class()))
		in := c.Intent(orphan)
		protect := func(value string) {
			c.Expect(c.Client.UpdateVM(c.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"protection": value}})).To(Succeed())
		}
		run := func() {
			for range 3 {
				c.run()
				c.Clock.Advance(grace)
			}
		}
		protect("1")
		run()
		c.Expect(c.Events.Reasons(orphan)).To(HaveEach(v1alpha1.EventVMProtected))
		c.Expect(c.Events.Emitted(v1alpha1.EventVMProtected)).To(ConsistOf(And(ContainSubstring("its NodeClaim does not exist"), ContainSubstring("--protection 0"))))
		protect("0")
		c.Expect(c.Sim.SetConfigLock(in.VMID, "backup")).To(Succeed())
		run()
		c.Expect(c.Events.Emitted(v1alpha1.EventVMLocked)).To(ConsistOf(ContainSubstring("locked (backup)")))
		c.Expect(c.VMs()).To(HaveLen(1))

		c.Expect(c.Sim.SetConfigLock(in.VMID, "")).To(Succeed())
		c.runUntilEmpty(c.vms)
		c.Expect(slices.Compact(c.Events.Reasons(orphan))).To(Equal([]string{v1alpha1.EventVMProtected, v1alpha1.EventVMLocked, "OrphanedVMDeleted"}))
	})
}

// A storage becomes inactive before the VM of an orphan is destroyed. Proxmox then leaves
// the disk and does not list the VM any more.
func TestOrphanWithRemainingDisk(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		orphan := c.orphan(c.Launched("orphan", c.Class()))
		in := c.Intent(orphan)
		c.run()
		c.Clock.Advance(grace + time.Second)
		c.Refresh()
		c.Expect(c.Sim.SetStorageActive(in.Host, in.Storage, false)).To(Succeed())
		c.Expect(c.controller.Reconcile(c.Context())).Error().NotTo(HaveOccurred())
		c.Expect(c.VMs()).To(BeEmpty())
		c.Expect(c.Events.Messages(v1alpha1.EventDiskNotDeleted)).To(ConsistOf(ContainSubstring("local-lvm:vm-%d-disk-0", in.VMID)))

		c.Expect(c.Sim.SetStorageActive(in.Host, in.Storage, true)).To(Succeed())
		c.run()
		c.Expect(c.Disks(in.Host, in.VMID)).To(BeEmpty())
		c.Expect(c.Events.Reasons(orphan)).To(Equal([]string{v1alpha1.EventDiskNotDeleted, "OrphanedVMDeleted"}))
	})
}

// reportOnly is like in the controller, which must not list join tokens.
func reportOnly(d *garbagecollection.Deps) {
	d.Rules.Policy, d.Tokens = garbagecollection.PolicyReport, nil
}

func TestPolicyReport(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		orphan := c.orphan(c.Launched("orphan", c.Class()))
		c.start(reportOnly)
		c.runAfterGrace()
		c.Expect(c.VMs()).To(HaveLen(1))
		c.Expect(c.Tokens()).To(HaveLen(1))
		c.Expect(c.Events.Messages("OrphanedVM")).To(ConsistOf(ContainSubstring("qm destroy")))
		c.Expect(c.Events.Reasons(orphan)).To(Equal([]string{"OrphanedVM"}))
		c.Expect(testenv.Metric(c.T, c.registry, orphans)).To(HaveKeyWithValue("vm", 1.0))
		c.Expect(testenv.Metric(c.T, c.registry, deleted)).To(BeEmpty())

		// An administrator deletes it.
		c.Delete(orphan)
		c.run()
		c.Expect(testenv.Metric(c.T, c.registry, orphans)).To(HaveKeyWithValue("vm", 0.0))
	})
}

// The command for an administrator does not delete a volume that the controller would keep.
func TestPolicyReportAttachedVolume(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		claim := c.Launched("orphan", c.Class())
		in := c.Intent(claim)
		name := fmt.Sprintf("vm-%d-pvc-1", in.VMID)
		c.PostToProxmox(fmt.Sprintf("/nodes/%s/storage/local-lvm/content", in.Host),
			url.Values{"vmid": {fmt.Sprint(in.VMID)}, "filename": {name}, "size": {"1G"}})
		c.Expect(c.Client.UpdateVM(c.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"scsi1": "local-lvm:" + name}})).To(Succeed())
		c.orphan(claim)
		c.Restart(true) // it reads the configuration
		c.start(reportOnly)
		c.Expect(c.controller.Find(c.Context())).To(ContainElement(And(HaveField("Kind", "vm"),
			HaveField("Command", And(HavePrefix("# "), ContainSubstring("pvc-1"), Not(ContainSubstring("qm destroy")))))))
		c.runAfterGrace()
		c.Expect(c.Events.Messages("VolumeAttached")).To(HaveLen(1))
		c.Expect(c.Events.Messages("OrphanedVM")).To(BeEmpty())
	})
}
