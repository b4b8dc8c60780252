// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
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
	offline := host("pve3", 16, 64)
	offline.Online = false
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64), offline)
	c.groups = []string{"kubernetes"}
	c.permissions = proxmox.Permissions{"/": {"VM.Audit": true}}
	i, _ := newInventory(t, c)
	refresh(t, i)
	got := factCalls(c)
	slices.Sort(got)
	if want := []string{"bridges pve1", "bridges pve2", "groups", "notes pve1", "notes pve2", "options", "permissions", "vnets"}; !slices.Equal(got, want) {
		t.Errorf("the first poll makes the calls %v, want %v", got, want)
	}
	facts := i.View().Snapshots["r"].Facts
	if facts.User != "kubernetes@pve!karpenter" || !facts.Permissions["/"]["VM.Audit"] || !facts.SecurityGroups["kubernetes"] ||
		facts.Bridges["pve2"]["vmbr0"].Type != "bridge" || len(facts.Pools) != 0 {
		t.Errorf("the facts are %+v", facts)
	}
	refresh(t, i)
	if calls := factCalls(c); len(calls) > 0 {
		t.Errorf("the second poll reads facts again: %v", calls)
	}
}

func TestFactsInvalidate(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	i, clock := newInventory(t, c)
	refresh(t, i)
	generation := i.View().Generation
	c.takeCalls()
	c.change(func() { c.groups = []string{"new"} })

	i.Invalidate("r", inventory.FactSecurityGroups)
	i.Invalidate("nowhere", inventory.FactSecurityGroups)
	refresh(t, i)
	if calls := factCalls(c); len(calls) > 0 {
		t.Errorf("a fact that was just read is read again: %v", calls)
	}
	clock.Step(30 * time.Second)
	refresh(t, i)
	if calls := factCalls(c); !slices.Equal(calls, []string{"groups"}) {
		t.Errorf("the calls are %v, want only the invalidated fact", calls)
	}
	if !i.View().Snapshots["r"].Facts.SecurityGroups["new"] || i.View().Generation == generation {
		t.Error("the change is not in the View, or its generation is the same")
	}
	clock.Step(30 * time.Second)
	refresh(t, i)
	if calls := factCalls(c); slices.Contains(calls, "groups") {
		t.Error("the fact is still invalidated after it was read")
	}
}

func TestFactsPoolOnDemand(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	i, _ := newInventory(t, c)
	refresh(t, i)
	i.Invalidate("r", inventory.FactPool("karpenter"), inventory.FactPool("nothing"))
	refresh(t, i)
	pools := i.View().Snapshots["r"].Facts.Pools
	if exists, known := pools["karpenter"]; !exists || !known {
		t.Errorf("the pools are %v", pools)
	}
	if exists, known := pools["nothing"]; exists || !known {
		t.Errorf("the pools are %v", pools)
	}
}

func TestFactsSnippetsOnDemand(t *testing.T) {
	t.Parallel()
	offline := host("pve3", 16, 64)
	offline.Online = false
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64), offline)
	i, clock := newInventory(t, c)
	refresh(t, i)
	c.takeCalls()
	on := func(name string) inventory.StorageKey { return inventory.StorageKey{Host: name, Storage: "local"} }
	for _, name := range []string{"pve1", "pve2", "pve3"} {
		i.Invalidate("r", inventory.FactSnippets(on(name)))
	}
	refresh(t, i)
	calls := factCalls(c)
	slices.Sort(calls)
	if want := []string{"snippets pve1/local", "snippets pve2/local"}; !slices.Equal(calls, want) {
		t.Errorf("the calls are %v, want %v without the offline host", calls, want)
	}
	snippets := i.View().Snapshots["r"].Facts.Snippets
	if !snippets[on("pve1")]["local:snippets/pve1.yaml"] || snippets[on("pve2")]["local:snippets/pve1.yaml"] {
		t.Errorf("the snippets are %v", snippets)
	}
	if _, known := snippets[on("pve3")]; known {
		t.Errorf("the snippets are %v, want none of the offline host", snippets)
	}
	c.change(func() { c.resources.Hosts[2].Online = true })
	clock.Step(time.Second)
	refresh(t, i)
	if calls := factCalls(c); !slices.Contains(calls, "snippets pve3/local") {
		t.Errorf("the calls are %v after the host is back online", calls)
	}
}

func TestFactsBackgroundReads(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
	i, clock := newInventory(t, c)
	refresh(t, i)
	c.takeCalls()
	count := map[string]int{}
	for range 120 * 6 {
		pollFor(t, i, clock, 10*time.Second)
		calls := factCalls(c)
		if len(calls) > 1 {
			t.Errorf("one poll reads %v, want one call", calls)
		}
		for _, call := range calls {
			count[call]++
		}
	}
	for _, call := range []string{"notes pve1", "notes pve2"} {
		if count[call] < 1 || count[call] >= count["groups"] {
			t.Errorf("%s was read %d times in two hours, groups %d times", call, count[call], count["groups"])
		}
	}
	for _, call := range []string{"bridges pve1", "bridges pve2", "groups", "options", "vnets"} {
		if count[call] < 3 || count[call] >= count["permissions"] {
			t.Errorf("%s was read %d times in two hours, permissions %d times", call, count[call], count["permissions"])
		}
	}
}

func TestFactsRetryBackoff(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.noSDN = errors.New("not implemented")
	i, clock := newInventory(t, c)
	refresh(t, i)
	c.takeCalls()
	tries := 0
	for range 60 {
		clock.Step(time.Minute)
		refresh(t, i)
		for _, call := range factCalls(c) {
			if call == "vnets" {
				tries++
			}
		}
	}
	if tries < 3 || tries > 6 {
		t.Errorf("%d tries in an hour, want 3 to 6", tries)
	}
	if i.View().Snapshots["r"].Facts.SecurityGroups == nil {
		t.Error("the other facts are unknown")
	}
}
