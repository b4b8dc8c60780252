// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// withMapping adds a mapping and the privilege to use it.
func withMapping(kind, id string, devices ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Mappings = []pvesim.Mapping{{Kind: kind, ID: id, Map: devices}}
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use")
	}
}

func withShares(mappings ...string) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		for _, mapping := range mappings {
			c.Spec.Shares = append(c.Spec.Shares, v1alpha1.Share{Mapping: mapping})
		}
	}
}

func withPlan9Share(c *v1alpha1.ProxmoxNodeClass) {
	c.Spec.Shares = []v1alpha1.Share{{Mapping: "data", Type: v1alpha1.ShareTypePlan9}}
}

func TestCheckShares(t *testing.T) {
	const missing = `spec.shares[0].mapping: directory mapping "data" has no directory on this host; add one (Datacenter, Resource Mappings)`
	runChecks(t, v1alpha1.ConditionSharesReady, v1alpha1.ReasonDirectoriesNotFound, map[string]checkCase{
		"on_one_host": {hosts: 3, scenario: withMapping("dir", "data", "node=pve2,path=/tank/data"), class: withShares("data"), unread: true,
			unusable: map[string]string{"pve1": missing, "pve3": missing}},
		"unknown_mapping": {scenario: withMapping("dir", "data", "node=pve1,path=/tank"), class: withShares("data", "cache"),
			want: `region-1: spec.shares[1].mapping: directory mapping "cache" does not exist; ` +
				"run: pvesh create /cluster/mapping/dir --id cache --map node=HOST,path=DIRECTORY, with a --map for each host"},
		"directory_of_template_on_other_host": {
			scenario: both(withMapping("dir", "data", "node=pve7,path=/tank"), setTemplateOption("virtiofs0", "data,cache=never")),
			want:     `region-1/pve1: virtiofs of template 9000: directory mapping "data" has no directory on this host; add one (Datacenter, Resource Mappings)`,
		},
		"plan9": {hosts: 2, scenario: withMapping("dir", "data", "node=pve1,path=/tank/data", "node=pve2,path=/tank/my data"), class: withPlan9Share, root: true,
			unusable: map[string]string{
				"pve2": `spec.shares[0].mapping: refused: args: the directory "/tank/my data" of mapping data cannot be named in QEMU's arguments...`,
			}},
	})
}

// Facts of failed checks are read again.
func TestCheckAfterFix(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		checkCase
		condition string
		fix       func(*testenv.Env)
	}{
		"directory": {
			checkCase{scenario: withMapping("dir", "other"), class: withShares("data")}, v1alpha1.ConditionSharesReady,
			func(w *testenv.Env) {
				w.Sim.AddMapping(pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank/data"}})
			},
		},
		"resource_pool": {
			checkCase{
				scenario: func(s *pvesim.Scenario) { s.Pools = []pvesim.Pool{{ID: "later"}} },
				class:    func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.ResourcePool = "later" },
				prepare: func(w *testenv.Env) {
					w.AddFault(pvesim.Fault{Path: "/pools", Status: 500, Message: "no such pool 'later'"})
				},
			},
			v1alpha1.ConditionResourcePoolReady, func(w *testenv.Env) { w.Sim.ClearFaults() },
		},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w, class := c.newClass(t)
			nodeClassStatusReconcileClass(w, class)
			w.Refresh()
			w.Expect(nodeClassStatusCondition(nodeClassStatusReconcileClass(w, class), c.condition)).To(HavePrefix("False"))
			c.fix(w)
			w.Clock.Advance(time.Minute) // invalidated facts are read after a delay
			w.Refresh()
			w.Expect(isReady(nodeClassStatusReconcileClass(w, class))).To(BeTrue(), nodeClassStatusCondition(class, c.condition))
		})
	}
}
