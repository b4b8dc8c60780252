// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
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
	task, err := client.CloneVM(c.Context(), proxmox.CloneRequest{Host: "pve1", TemplateID: 9000, VMID: vmid, Name: "clone", Description: mark.Notes("")})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(proxmox.WaitTask(c.Context(), client, task, proxmox.WaitOptions{Clock: c.Clock})).To(HaveField("Succeeded()", true))
}

// A clone that was never configured has the UUID of no claim. It is deleted if our user cloned it.
func TestDeleteUnconfiguredClone(t *testing.T) {
	admin := testenv.Scenario(func(s *pvesim.Scenario) {
		for i := range s.Users {
			if s.Users[i].ID == "root@pam" {
				s.Users[i].Tokens = []pvesim.Token{{ID: "admin", Secret: "secret"}}
			}
		}
	})
	const ours, theirs, reused = 20700, 20701, 20702
	garbageCollectionSimulated(t, testenv.With(admin), func(c *collector) {
		config := testenv.ClusterConfig(c.Sim, testenv.Region)
		config.TokenID, config.TokenSecret = "root@pam!admin", "secret"
		administrator := testenv.NewClient(c.T, c.Sim, config)
		c.cloneUnconfigured(c.Client, ours, "a")
		c.cloneUnconfigured(administrator, theirs, "b")
		// The VMID of a clone that we destroyed is used by another user.
		c.cloneUnconfigured(c.Client, reused, "c")
		c.Wait(c.Client.DestroyVM(c.Context(), "pve1", reused))
		c.cloneUnconfigured(administrator, reused, "c")
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

// A claim got another VMID, for example because a restarted controller did not see the plan.
func TestDeleteVMOfOtherVMID(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		claim := c.Launched("a", c.Class())
		vmid := c.Intent(claim).VMID
		testenv.ModifyStatus(c.Env, claim, func(claim *karpv1.NodeClaim) { claim.Status.ProviderID = "proxmox://region-1/20900" })
		c.runAfterGrace()
		c.Expect(c.VMs()).To(BeEmpty())
		c.Expect(c.Events.Messages("OrphanedVMDeleted")).To(ConsistOf(ContainSubstring("VM %d ", vmid)))
		c.Expect(c.Tokens()).To(ConsistOf(claim.Name), "the claim still needs it")
		c.Expect(c.BootDrives("pve1")).To(HaveLen(1), "the name of the boot drive is that of the claim")
	})
}

// A claim whose providerID is not stored yet may have any VM.
func TestKeepVMOfClaimWithoutProviderID(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(), func(c *collector) {
		claim := c.Launched("a", c.Class())
		testenv.ModifyStatus(c.Env, claim, func(claim *karpv1.NodeClaim) { claim.Status.ProviderID = "" })
		c.runAfterGrace()
		c.Expect(c.VMs()).To(HaveLen(1))
	})
}

// Two VMs have the mark and the UUID of one claim.
func TestDuplicateVM(t *testing.T) {
	t.Parallel()
	for name, deleted := range map[string]bool{"claim_exists": false, "claim_deleted": true} {
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
			if deleted {
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
			if deleted {
				c.Expect(c.VMs()).To(BeEmpty())
			} else {
				c.Expect(c.VMs()).To(HaveLen(1))
			}
		})
	}
}
