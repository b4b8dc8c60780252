// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// factCalls returns the calls that read facts.
func factCalls(c *cluster) []string {
	return slices.DeleteFunc(c.takeCalls(), func(call string) bool {
		return slices.Contains([]string{"resources", "mappings", "version"}, call) || strings.HasPrefix(call, "hardware ")
	})
}

func TestFactsInFirstSnapshot(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	offline := host("pve3", 16, 64)
	offline.Online = false
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64), offline)
	c.groups = []string{"kubernetes"}
	c.permissions = proxmox.Permissions{"/": {"VM.Audit": true, "Sys.Audit": true}}
	i, _ := newPolled(t, c)
	g.Expect(factCalls(c)).To(ConsistOf("bridges pve1", "bridges pve2", "groups", "notes pve1", "notes pve2", "options", "permissions", "vnets"))
	facts := i.View().Snapshots["r"].Facts
	g.Expect(facts.User).To(Equal("kubernetes@pve!karpenter"))
	g.Expect(facts.Permissions["/"]["VM.Audit"]).To(BeTrue())
	g.Expect(facts.SecurityGroups["kubernetes"]).To(BeTrue())
	g.Expect(facts.Bridges["pve2"]["vmbr0"].Type).To(Equal("bridge"))
	g.Expect(facts.Pools).To(BeEmpty())
	refresh(t, i)
	g.Expect(factCalls(c)).To(BeEmpty(), "the second poll reads facts again")

	i.Invalidate("r", poll.FactPool("karpenter"), poll.FactPool("nothing"))
	refresh(t, i)
	g.Expect(i.View().Snapshots["r"].Facts.Pools).To(Equal(map[string]bool{"karpenter": true, "nothing": false}))
}

func TestFactsInvalidate(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64))
	i, clock := newPolled(t, c)
	generation := i.View().Generation
	c.takeCalls()
	c.change(func() { c.groups = []string{"new"} })

	i.Invalidate("r", poll.FactSecurityGroups)
	i.Invalidate("nowhere", poll.FactSecurityGroups)
	refresh(t, i)
	g.Expect(factCalls(c)).To(BeEmpty(), "a fact that was just read is read again")
	clock.Step(30 * time.Second)
	refresh(t, i)
	g.Expect(factCalls(c)).To(Equal([]string{"groups"}), "want only the invalidated fact")
	g.Expect(i.View().Snapshots["r"].Facts.SecurityGroups["new"]).To(BeTrue())
	g.Expect(i.View().Generation).NotTo(Equal(generation))
	clock.Step(30 * time.Second)
	refresh(t, i)
	g.Expect(factCalls(c)).NotTo(ContainElement("groups"), "the fact is still invalidated after it was read")
}

func TestFactsSnippetsOnDemand(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	offline := host("pve3", 16, 64)
	offline.Online = false
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64), offline)
	i, clock := newPolled(t, c)
	c.takeCalls()
	on := func(name string) observed.StorageKey { return observed.StorageKey{Host: name, Storage: "local"} }
	for _, name := range []string{"pve1", "pve2", "pve3"} {
		i.Invalidate("r", poll.FactSnippets(on(name)))
	}
	refresh(t, i)
	g.Expect(factCalls(c)).To(ConsistOf("snippets pve1/local", "snippets pve2/local"))
	snippets := i.View().Snapshots["r"].Facts.Snippets
	g.Expect(snippets[on("pve1")]["local:snippets/pve1.yaml"]).To(BeTrue())
	g.Expect(snippets[on("pve2")]["local:snippets/pve1.yaml"]).To(BeFalse())
	g.Expect(snippets).NotTo(HaveKey(on("pve3")), "the host is offline")
	c.change(func() { c.resources.Hosts[2].Online = true })
	clock.Step(time.Second)
	refresh(t, i)
	g.Expect(factCalls(c)).To(ContainElement("snippets pve3/local"))
}

func TestFactsBackgroundReads(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
	i, clock := newPolled(t, c)
	c.takeCalls()
	count := map[string]int{}
	for range 120 * 6 {
		pollFor(t, i, clock, 10*time.Second)
		calls := factCalls(c)
		g.Expect(len(calls)).To(BeNumerically("<=", 1), "one poll reads")
		for _, call := range calls {
			count[call]++
		}
	}
	for _, call := range []string{"bridges pve1", "bridges pve2", "groups", "notes pve1", "notes pve2", "options", "vnets"} {
		g.Expect(count[call]).To(BeNumerically(">=", 3))
		g.Expect(count[call]).To(BeNumerically("<", count["permissions"]))
	}
}

func TestFactsRetryBackoff(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64))
	c.failures["vnets"] = errors.New("not implemented")
	i, clock := newPolled(t, c)
	c.takeCalls()
	pollFor(t, i, clock, time.Hour)
	g.Expect(len(c.takeReads("vnets"))).To(And(BeNumerically(">=", 3), BeNumerically("<=", 6)))
	g.Expect(i.View().Snapshots["r"].Facts.SecurityGroups).NotTo(BeNil(), "the other facts are unknown")
}
