// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// asRootOf returns a client of root@pam on a release.
func asRootOf(t *testing.T, release string) *client {
	t.Helper()
	s := pvesim.DefaultScenario(2)
	s.Version = release
	c := asRoot(t, s)
	for _, vmid := range []string{"300", "301", "302"} {
		c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", vmid)
	}
	return c
}

func TestHARules(t *testing.T) { simulated(t, testHARules) }

func testHARules(t *testing.T, g *WithT) {
	c := asRootOf(t, "9.2")
	const rules, rule = "/cluster/ha/rules", "/cluster/ha/rules/apart"
	c.ok("POST", "/cluster/ha/resources", "sid", "vm:300", "state", "ignored", "auto-rebalance", "0", "failback", "0")
	c.ok("POST", "/cluster/ha/resources", "sid", "vm:301", "state", "stopped", "max_restart", "3")
	c.refused(500, "invalid parameter 'group': ha groups have been migrated to rules", "POST", "/cluster/ha/resources", "sid", "vm:302", "group", "gg")
	negative := []string{"rule", "apart", "type", "resource-affinity", "affinity", "negative", "resources"}
	c.refused(500, "cannot use unmanaged resource(s) vm:302.", "POST", rules, append(negative, "vm:300,vm:302")...)
	c.refused(400, "Rule 'apart' is invalid.", "POST", rules, append(negative, "vm:300")...)
	c.refused(500, "unexpected property 'nodes'", "POST", rules, append(negative, "vm:300,vm:301", "nodes", "pve1")...)
	c.refused(500, "missing value for required option 'affinity'", "POST", rules, "rule", "apart", "type", "resource-affinity", "resources", "vm:300,vm:301")
	c.refused(500, "cannot use non-existant node(s) pve9.", "POST", rules, "rule", "on", "type", "node-affinity", "resources", "vm:300", "nodes", "pve9:2") //nolint:misspell // the spelling of Proxmox
	c.ok("POST", rules, append(negative, "vm:300,vm:301")...)
	c.ok("POST", "/cluster/ha/resources", "sid", "vm:302")
	digest := c.object(rule)["digest"].(string)
	c.refused(400, "Rule 'apart' is invalid.", "PUT", rule, "type", "resource-affinity", "resources", "vm:300,vm:301,vm:302", "digest", digest)
	c.ok("PUT", rule, "type", "resource-affinity", "resources", "vm:300,vm:302", "digest", digest)
	c.refused(500, "detected modified configuration - file changed by other user? Try again.", "PUT", rule, "type", "resource-affinity", "resources", "vm:300,vm:301", "digest", digest)
	want := func(when string, resources ...string) {
		t.Helper()
		g.Expect(c.sim.HARules()["apart"]).To(Equal(resources), "%s: rule", when)
	}
	want("written", "vm:300", "vm:302")
	c.ok("DELETE", "/cluster/ha/resources/vm:302")
	want("resource removed", "vm:300")
	c.task("DELETE", "/nodes/pve1/qemu/300", "purge", "1")
	want("VM destroyed", "vm:300")
	c.ok("POST", "/cluster/ha/resources", "sid", "vm:302")
	c.refused(500, "cannot use unmanaged resource(s) vm:300.", "PUT", rule, "type", "resource-affinity", "resources", "vm:300,vm:302")
	c.ok("PUT", rule, "type", "resource-affinity", "resources", "vm:301,vm:302")
	c.ok("DELETE", "/cluster/ha/resources/vm:301")
	c.ok("DELETE", "/cluster/ha/resources/vm:302")
	g.Expect(len(c.sim.HARules())).To(BeNumerically("<=", 0), "rule without resources")
	g.Expect(len(c.sim.HAResources())).To(BeNumerically("<=", 0))
	c.refused(500, "cannot delete service 'vm:301', not HA managed!", "DELETE", "/cluster/ha/resources/vm:301")
}

// TestHASeparated migrates a VM in HA to the host of one that a rule keeps apart from it.
func TestHASeparated(t *testing.T) { simulated(t, testHASeparated) }

func testHASeparated(t *testing.T, g *WithT) {
	c := asRootOf(t, "9.2")
	for _, sid := range []string{"vm:300", "vm:301"} {
		c.ok("POST", "/cluster/ha/resources", "sid", sid, "state", "stopped")
	}
	g.Expect(c.sim.MigrateGuest(301, "pve2")).To(Succeed())
	c.ok("POST", "/cluster/ha/rules", "rule", "apart", "type", "resource-affinity", "affinity", "negative", "resources", "vm:300,vm:301")
	c.refused(500, "cannot migrate resource 'vm:300' to node 'pve2': resource 'vm:301' on target node in negative affinity",
		"POST", "/nodes/pve1/qemu/300/migrate", "target", "pve2")
}

func TestHAGroups(t *testing.T) { simulated(t, testHAGroups) }

func testHAGroups(t *testing.T, _ *WithT) {
	c := asRootOf(t, "8.4")
	c.refused(500, "HA group 'rack1' does not exist", "POST", "/cluster/ha/resources", "sid", "vm:300", "group", "rack1")
	c.ok("POST", "/cluster/ha/groups", "group", "rack1", "nodes", "pve1:2,pve2")
	c.ok("POST", "/cluster/ha/resources", "sid", "vm:300", "group", "rack1", "state", "stopped")
	c.ok("PUT", "/cluster/ha/resources/vm:300", "max_relocate", "0", "delete", "group")
	resource := c.object("/cluster/ha/resources/vm:300")
	if _, has := resource["group"]; has || resource["max_relocate"] != "0" {
		t.Errorf("resource is %v", resource)
	}
	c.ok("DELETE", "/cluster/ha/resources/vm:300")
}
