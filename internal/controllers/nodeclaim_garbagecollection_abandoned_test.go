// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// abandon finishes a claim without its VM, which an administrator allowed.
func (c *collector) abandon(claim *karpv1.NodeClaim, host string) {
	c.T.Helper()
	c.Fence(host)
	deleted, err := c.Instances.Deleter.Delete(c.T.Context(), claim)
	c.Expect(deleted).To(BeTrue())
	c.Expect(err).To(MatchError(ContainSubstring("is fenced")))
	c.orphan(claim)
}

// shutDown stops a Host.
func (c *collector) shutDown(host string) {
	c.T.Helper()
	c.Expect(c.Sim.HostDown(host, "noroute")).To(Succeed())
	c.Refresh()
}

// The claims of a fenced Host were finished without their VMs. These are deleted when the
// Host is back, although they are most of all VMs.
func TestDeleteFencedVMs(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(testenv.Hosts(2)), func(c *collector) {
		class := c.Class(func(class *v1alpha1.ProxmoxNodeClass) { class.Spec.PlacementStrategy.PoolAffinity = "SameHost" })
		var claims []*karpv1.NodeClaim
		for _, name := range []string{"a", "b", "c", "d"} {
			claims = append(claims, c.Launched(name, class))
		}
		host := c.Intent(claims[0]).Host
		c.shutDown(host)
		for _, claim := range claims {
			c.Expect(c.Intent(claim).Host).To(Equal(host))
			c.abandon(claim, host)
		}
		c.run()
		c.Sim.ResetRequests()
		c.runAfterGrace()
		c.Expect(c.Sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/config")).To(BeZero(), "no request to a host that is offline")
		c.Expect(c.VMs()).To(HaveLen(4))

		c.Expect(c.Sim.HostUp(host)).To(Succeed())
		c.runUntilEmpty(c.vms)
		c.runUntilEmpty(func() any { return c.BootDrives(host) })
		c.ExpectNoTokens()
	})
}

// A claim of a fenced host was restored from a list that was older than its end. Proxmox still
// lists its VM.
func TestReleaseAbandonedReservation(t *testing.T) {
	garbageCollectionSimulated(t, testenv.With(testenv.Hosts(2)), func(c *collector) {
		claim := c.Launched("a", c.Class())
		host := c.Intent(claim).Host
		c.shutDown(host)
		listed := *claim.DeepCopy()
		c.abandon(claim, host)
		c.Instances.Planner.RestoreReservation(listed)
		c.Expect(c.Inventory.View().Reservations).To(HaveKey(string(claim.UID)))
		c.Clock.Advance(grace + time.Second)
		c.run()
		c.Expect(c.VMs()).To(HaveLen(1))
		c.Expect(c.Inventory.View().Reservations).To(BeEmpty())
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
