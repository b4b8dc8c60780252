// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// narrow returns a client whose privilege-separated token has permissions on these paths only.
func narrow(t *testing.T, acls ...string) *client {
	t.Helper()
	s := pvesim.DefaultScenario(1)
	s.Users[0].Tokens = append(s.Users[0].Tokens, pvesim.Token{ID: "narrow", Secret: "s", Privsep: true})
	s.Pools = []pvesim.Pool{{ID: "kube", VMs: []int{9000}}}
	for _, path := range acls {
		s.ACLs = append(s.ACLs, pvesim.ACL{Path: path, Role: "Karpenter", Token: "kubernetes@pve!narrow"})
	}
	return startSim(t, s, pvesim.Options{}).as("kubernetes@pve!narrow=s")
}

func TestPermissions(t *testing.T) { simulated(t, testPermissions) }

func testPermissions(t *testing.T, g *WithT) {
	c := narrow(t, "/vms", "/storage/local-lvm", "/sdn/zones/localnetwork")
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")

	// VLANs of trunks
	c = narrow(t, "/vms", "/sdn/zones/localnetwork/vmbr0/7", "/sdn/zones/localnetwork/vmbr0/8")
	c.ok("PUT", "/nodes/pve1/qemu/101/config", "net1", "virtio,bridge=vmbr0,trunks=7-8")
	c.refused(403, "Permission check failed (/sdn/zones/localnetwork/vmbr0/9, SDN.Use)", "PUT", "/nodes/pve1/qemu/101/config",
		"net1", "virtio,bridge=vmbr0,tag=8,trunks=7;9")

	// lists
	c = narrow(t, "/vms/101")
	rows := c.ok("GET", "/cluster/resources")
	g.Expect(rows).To(ContainElement(HaveKeyWithValue("id", "qemu/101")))
	g.Expect(rows).NotTo(ContainElement(Or(HaveKeyWithValue("id", "qemu/9000"), HaveKeyWithValue("type", "storage"))))
	g.Expect(rows).To(ContainElement(fields("id", "node/pve1", "maxmem", nil)), "host is listed without usage")
	g.Expect(c.ok("GET", "/nodes/pve1/storage")).To(BeEmpty())
	c.refused(403, "Permission check failed (/, Sys.Audit)", "GET", "/cluster/status")

	// resource pools
	c = narrow(t, "/pool/kube", "/storage/local-lvm", "/sdn")
	c.ok("GET", "/nodes/pve1/qemu/9000/config")
	c.refused(403, "Permission check failed (/vms/101, VM.Audit)", "GET", "/nodes/pve1/qemu/101/config")
	c.refused(403, "Permission check failed", "POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "pool", "kube")
	c.ok("GET", "/nodes/pve1/qemu/300/config")
	c.task("DELETE", "/nodes/pve1/qemu/300")
	c.refused(403, "Permission check failed (/vms/300, VM.Audit)", "GET", "/nodes/pve1/qemu/300/config")

	// a token of root@pam is not its login
	c = asRoot(t, pvesim.DefaultScenario(1))
	c.ok("POST", "/access/roles", "roleid", "Small", "privs", "VM.Audit VM.Clone")
	c.refused(500, "only root can set 'args' config", "PUT", "/nodes/pve1/qemu/101/config", "args", "-foo")
	g.Expect(c.do("POST", "/nodes/pve1/qemu/101/status/stop", "skiplock", "1").Errors).To(HaveKeyWithValue("skiplock", "Only root may use this option."))
}

func TestPermissionsOfGroups(t *testing.T) { simulated(t, testPermissionsOfGroups) }

func testPermissionsOfGroups(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Pools = []pvesim.Pool{{ID: "team", VMs: []int{101}}}
	s.Users = append(s.Users, pvesim.User{ID: "ann@pve", Tokens: []pvesim.Token{{ID: "t", Secret: "s"}}})
	root := asRoot(t, s)
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
	g.Expect(root.object("/access/groups/ops")["members"]).To(ConsistOf("ann@pve"))
	root.ok("DELETE", "/access/groups/ops")
	ann.refused(403, "Permission check failed (/vms/101, VM.Audit)", "GET", "/nodes/pve1/qemu/101/config")

	root.ok("PUT", "/access/acl", "path", "/", "roles", "PVEAuditor", "users", "ann@pve")
	root.ok("PUT", "/access/acl", "path", "/sdn/zones/localnetwork", "roles", "NoAccess", "users", "ann@pve")
	listed := ann.object("/access/permissions")
	g.Expect(listed).To(And(HaveKey("/sdn"), HaveKey("/sdn/zones"), Not(HaveKey("/sdn/zones/localnetwork"))))
	g.Expect(ann.object("/access/permissions", "path", "/sdn/zones/localnetwork/vmbr0")).
		To(HaveKeyWithValue("/sdn/zones/localnetwork/vmbr0", BeEmpty()), "the path without privileges")
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
	for version, ha := range map[string][3]string{
		"8.4": {"/cluster/ha/groups", "group", "nodes pve1"},
		"9.2": {"/cluster/ha/rules", "rule", "type node-affinity resources vm:101 nodes pve1"},
	} {
		c := asRoot(t, scenarioOf(version, 2))
		c.ok("POST", "/cluster/ha/resources", "sid", "vm:101", "state", "ignored")
		for _, o := range [][3]string{
			ha, {"/cluster/sdn/zones", "zone", "type simple"}, {"/cluster/mapping/pci", "id", "map node=pve1,path=0000:01:00.0,id=10de:2204"},
		} {
			c.ok("POST", o[0], append([]string{o[1], "thing1"}, strings.Fields(o[2])...)...)
			g.Expect(c.object(o[0] + "/thing1")[o[1]]).To(Equal("thing1"), o[0])
			g.Expect(c.ok("GET", o[0])).To(HaveLen(1), o[0])
			c.ok("DELETE", o[0]+"/thing1")
			g.Expect(c.ok("GET", o[0])).To(BeEmpty(), o[0])
		}
	}
}
