// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestPermissionsOfGroups(t *testing.T) { simulated(t, testPermissionsOfGroups) }

func testPermissionsOfGroups(t *testing.T, _ *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Users[1].Tokens = []pvesim.Token{{ID: "admin", Secret: "s"}}
	s.Users = append(s.Users, pvesim.User{ID: "ann@pve", Tokens: []pvesim.Token{{ID: "t", Secret: "s"}}})
	root := startSim(t, s, pvesim.Options{}).as("root@pam!admin=s")
	ann := root.as("ann@pve!t=s")
	ann.refused(403, "Permission check failed (/vms/101, VM.Audit)", "GET", "/nodes/pve1/qemu/101/config")
	root.refused(500, "ACL update failed: group 'ops' does not exist", "PUT", "/access/acl", "path", "/vms", "roles", "PVEAuditor", "groups", "ops")
	root.ok("POST", "/access/groups", "groupid", "ops", "comment", "people")
	root.ok("PUT", "/access/users/ann@pve", "groups", "ops")
	root.ok("PUT", "/access/acl", "path", "/vms", "roles", "PVEAuditor", "groups", "ops")
	ann.ok("GET", "/nodes/pve1/qemu/101/config")
	// An entry for the user takes precedence over entries for its groups.
	root.ok("PUT", "/access/acl", "path", "/vms", "roles", "NoAccess", "users", "ann@pve")
	ann.refused(403, "Permission check failed (/vms/101, VM.Audit)", "GET", "/nodes/pve1/qemu/101/config")
	root.ok("PUT", "/access/acl", "path", "/vms", "roles", "NoAccess", "users", "ann@pve", "delete", "1")
	if m := root.object("/access/groups/ops")["members"].([]any); len(m) != 1 || m[0] != "ann@pve" {
		t.Errorf("members: %v", m)
	}
	root.ok("DELETE", "/access/groups/ops")
	ann.refused(403, "Permission check failed (/vms/101, VM.Audit)", "GET", "/nodes/pve1/qemu/101/config")
}

func TestNoAccess(t *testing.T) { simulated(t, testNoAccess) }

func testNoAccess(t *testing.T, _ *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Pools = []pvesim.Pool{{ID: "team", VMs: []int{101}}}
	s.Users[1].Tokens = []pvesim.Token{{ID: "admin", Secret: "s"}}
	s.Users = append(s.Users, pvesim.User{ID: "ann@pve", Tokens: []pvesim.Token{{ID: "t", Secret: "s"}}})
	root := startSim(t, s, pvesim.Options{}).as("root@pam!admin=s")
	ann := root.as("ann@pve!t=s")
	root.ok("PUT", "/access/acl", "path", "/", "roles", "PVEAuditor", "users", "ann@pve")
	root.ok("PUT", "/access/acl", "path", "/sdn/zones/localnetwork", "roles", "NoAccess", "users", "ann@pve")
	listed := ann.object("/access/permissions")
	for path, want := range map[string]bool{"/sdn": true, "/sdn/zones": true, "/sdn/zones/localnetwork": false} {
		if _, ok := listed[path]; ok != want {
			t.Errorf("%s is listed: %t", path, ok)
		}
	}
	one := ann.object("/access/permissions", "path", "/sdn/zones/localnetwork/vmbr0")
	if on, ok := one["/sdn/zones/localnetwork/vmbr0"].(map[string]any); !ok || len(on) > 0 {
		t.Errorf("found %v, want the path without privileges", one)
	}
	// NoAccess on a resource pool cancels the roles of its members, and NoAccess on a member those of the resource pool.
	ann.ok("GET", "/nodes/pve1/qemu/101/config")
	root.ok("PUT", "/access/acl", "path", "/pool/team", "roles", "NoAccess", "users", "ann@pve")
	ann.refused(403, "Permission check failed (/vms/101, VM.Audit)", "GET", "/nodes/pve1/qemu/101/config")
	root.ok("PUT", "/access/acl", "path", "/pool/team", "roles", "NoAccess", "users", "ann@pve", "delete", "1")
	root.ok("PUT", "/access/acl", "path", "/pool/team", "roles", "PVEVMAdmin", "users", "ann@pve")
	root.ok("PUT", "/access/acl", "path", "/vms/101", "roles", "NoAccess", "users", "ann@pve")
	ann.refused(403, "Permission check failed (/vms/101, VM.Audit)", "GET", "/nodes/pve1/qemu/101/config")
}

func TestStoredObjects(t *testing.T) { simulated(t, testStoredObjects) }

func testStoredObjects(t *testing.T, g *WithT) {
	for version, objects := range map[string][][3]string{
		"8.4": {{"/cluster/ha/groups", "group", "nodes=pve1"}},
		"9.2": {{"/cluster/ha/rules", "rule", "type=node-affinity&resources=vm:101&nodes=pve1"}},
	} {
		s := pvesim.DefaultScenario(2)
		s.Version = version
		s.Users[1].Tokens = []pvesim.Token{{ID: "admin", Secret: "s"}}
		c := startSim(t, s, pvesim.Options{}).as("root@pam!admin=s")
		objects = append(objects, [3]string{"/cluster/sdn/zones", "zone", "type=simple"}, [3]string{"/cluster/mapping/pci", "id", "map=node=pve1,path=0000:01:00.0,id=10de:2204"})
		c.ok("POST", "/cluster/ha/resources", "sid", "vm:101", "state", "ignored")
		for _, o := range objects {
			c.ok("POST", o[0], append([]string{o[1], "thing1"}, pairs(o[2])...)...)
			g.Expect(c.object(o[0] + "/thing1")[o[1]]).To(Equal("thing1"), o[0])
			g.Expect(c.ok("GET", o[0])).To(HaveLen(1), o[0])
			c.ok("DELETE", o[0]+"/thing1")
			g.Expect(c.ok("GET", o[0])).To(BeEmpty(), o[0])
		}
		if version == "9.2" {
			c.refused(500, "cannot create group: ha groups have been migrated to rules", "POST", "/cluster/ha/groups", "group", "gg", "nodes", "pve1")
		} else {
			c.refused(501, "Method 'GET /cluster/ha/rules' not implemented", "GET", "/cluster/ha/rules")
		}
	}
}

// pairs splits "a=b&c=d" into keys and values.
func pairs(s string) []string {
	var out []string
	for len(s) > 0 {
		var part string
		part, s = cut(s, "&")
		k, v := cut(part, "=")
		out = append(out, k, v)
	}
	return out
}

func cut(s, sep string) (before, after string) {
	for i := range len(s) {
		if s[i:i+1] == sep {
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}
