// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"cmp"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestCheckHighAvailability(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		release string
		ha      v1alpha1.HighAvailability
		// unprivileged tokens lack Sys.Console.
		unprivileged bool
		condition    string
		want         string // empty if the class is ready on both hosts
		// selected are the hosts that can be used.
		selected []string
	}{
		"8.4":   {release: "8.4"},
		"9.2":   {release: "9.2", ha: v1alpha1.HighAvailability{SeparateHosts: true}},
		"group": {release: "8.4", ha: v1alpha1.HighAvailability{Group: "both"}},
		"rules": {release: "9.2", ha: v1alpha1.HighAvailability{Rules: []string{"both", "away"}}},
		"without_privilege": {
			release: "9.2", unprivileged: true, condition: v1alpha1.ConditionPrivilegesSufficient, want: "lacks Sys.Console on /",
		},
		"group_on_9.2": {
			release: "9.2", ha: v1alpha1.HighAvailability{Group: "both"},
			want: `spec.highAvailability.group "both" needs Proxmox VE 8, this is 9.2, in which rules replaced HA groups; use spec.highAvailability.rules`,
		},
		"rules_on_8.4": {
			release: "8.4", ha: v1alpha1.HighAvailability{Rules: []string{"both", "away"}},
			want: "spec.highAvailability.rules both, away needs Proxmox VE 9.0 or newer, this is 8.4; use spec.highAvailability.group",
		},
		"separate_hosts_on_8.4": {
			release: "8.4", ha: v1alpha1.HighAvailability{SeparateHosts: true},
			want: "spec.highAvailability.separateHosts true needs Proxmox VE 9.0 or newer, this is 8.4; upgrade it, remove the field",
		},
		"unknown_group": {
			release: "8.4", ha: v1alpha1.HighAvailability{Group: "rack3"},
			want: `spec.highAvailability.group: HA group "rack3" does not exist; the cluster has both, second`,
		},
		"unknown_rule": {
			release: "9.2", ha: v1alpha1.HighAvailability{Rules: []string{"both", "rack3"}},
			want: `spec.highAvailability.rules[1]: HA rule "rack3" does not exist; the cluster has away, both, second`,
		},
		"group_of_one_host": {
			release: "8.4", ha: v1alpha1.HighAvailability{Group: "second"}, selected: []string{"region-1/pve2/9001"},
			want: `spec.highAvailability.group: HA group "second" has the hosts pve2, but not this one`,
		},
		"rule_of_one_host": {
			release: "9.2", ha: v1alpha1.HighAvailability{Rules: []string{"second"}}, selected: []string{"region-1/pve2/9001"},
			want: `spec.highAvailability.rules[0]: HA rule "second" has the hosts pve2, but not this one`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(withVersion(test.release), func(s *pvesim.Scenario) {
				if !test.unprivileged {
					s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Sys.Console")
				}
			}))
			w.Sim.AddHAGroup("both", "pve1:2", "pve2:1")
			w.Sim.AddHAGroup("second", "pve2")
			w.Sim.AddHARule("both", map[string]string{"type": "node-affinity", "nodes": "pve1:2,pve2:1", "resources": "vm:100"})
			w.Sim.AddHARule("second", map[string]string{"type": "node-affinity", "nodes": "pve2", "resources": "vm:100"})
			w.Sim.AddHARule("away", map[string]string{"type": "resource-affinity", "affinity": "negative", "resources": "vm:100,vm:101"})
			setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001")
			class := reconcileClass(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.PlacementStrategy.PoolAffinity = v1alpha1.PoolAffinitySeparateHosts
				c.Spec.HighAvailability = &test.ha
			}))
			w.Refresh() // groups and rules are read once a class refers to them
			class = reconcileClass(w, class)
			if test.want == "" {
				w.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue(), class.StatusConditions().Root().Message)
				w.Expect(class.Status.SelectedZones).To(HaveLen(2))
				return
			}
			w.Expect(class.Status.UnusableZones).To(ContainElement(HaveField("Reason", ContainSubstring(test.want))))
			w.Expect(class.Status.SelectedZones).To(ConsistOf(test.selected))
			if test.selected == nil {
				condition := cmp.Or(test.condition, v1alpha1.ConditionHighAvailabilityReady)
				w.Expect(class.StatusConditions().Get(condition).IsFalse()).To(BeTrue())
				w.Expect(conditionMessage(class, condition)).To(ContainSubstring(test.want))
			}
		})
	}
}
