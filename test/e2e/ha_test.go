// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestHighAvailability checks that the VMs of a static NodePool are in HA, on 9.2 with a rule
// that keeps them on separate hosts, and that nothing is left in HA when they are deleted.
func TestHighAvailability(t *testing.T) {
	t.Parallel()
	needs(t, simulator("its HA can be read"))
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, setup{hosts: 2, version: release, featureGates: "StaticCapacity=true", scenario: func(s *pvesim.Scenario) {
				s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Sys.Console")
			}})
			e.checkHA(t, release)
		})
	}
}

func (e *env) checkHA(t *testing.T, release string) {
	t.Helper()
	ha := &v1alpha1.HighAvailability{MaxRestart: new(int32(2))}
	if release == "8.4" {
		e.proxmox.AddHAGroup("workers", "pve1", "pve2")
		ha.Group = "workers"
	} else {
		ha.SeparateHosts = true
	}
	replicas := int64(2)
	p := e.newNodePool(t, "ha", func(kit *harness.Kit) {
		kit.Class.Spec.PlacementStrategy.PoolAffinity = v1alpha1.PoolAffinitySeparateHosts
		kit.Class.Spec.HighAvailability = ha
		kit.Pool.Spec.Replicas, kit.Pool.Spec.Limits = &replicas, nil
	})
	p.waitForNodes(t, 2)
	resources := e.proxmox.HAResources()
	if len(resources) != 2 {
		t.Errorf("HA has the resources %v, want two", resources)
	}
	for vmid, options := range resources {
		if options["state"] != "started" || options["max_restart"] != "2" || options["group"] != ha.Group {
			t.Errorf("VM %d has the options %v", vmid, options)
		}
	}
	rules := e.proxmox.HARules()
	if want := map[string]int{"8.4": 0, "9.2": 1}[release]; len(rules) != want {
		t.Errorf("HA has the rules %v, want %d", rules, want)
	}
	for name, members := range rules {
		if len(members) != 2 {
			t.Errorf("HA rule %s has %v, want both VMs", name, members)
		}
	}
	p.setReplicas(t, 0)
	p.waitForNodes(t, 0)
	p.waitUntilGone(t)
	if left := e.proxmox.HAResources(); len(left) > 0 {
		t.Errorf("resources are left in HA: %v", left)
	}
	if left := e.proxmox.HARules(); len(left) > 0 {
		t.Errorf("rules are left in HA: %v", left)
	}
}
