// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
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

func TestPermissionsMissing(t *testing.T) { simulated(t, testPermissionsMissing) }

func testPermissionsMissing(t *testing.T, _ *WithT) {
	clone := []string{"newid", "300", "full", "0"}
	for _, tc := range []struct {
		acls   []string
		reason string
	}{
		{nil, "Permission check failed (/vms/9000, VM.Clone)"},
		{[]string{"/vms"}, "Permission check failed (/storage/local-lvm, Datastore.AllocateSpace)"},
		{[]string{"/vms", "/storage/local-lvm"}, "Permission check failed (/sdn/zones/localnetwork/vmbr0, SDN.Use)"},
	} {
		narrow(t, tc.acls...).refused(403, tc.reason, "POST", "/nodes/pve1/qemu/9000/clone", clone...)
	}
	c := narrow(t, "/vms", "/storage/local-lvm", "/sdn/zones/localnetwork")
	c.task("POST", "/nodes/pve1/qemu/9000/clone", clone...)
}

func TestPermissionsOfTrunks(t *testing.T) { simulated(t, testPermissionsOfTrunks) }

func testPermissionsOfTrunks(t *testing.T, _ *WithT) {
	c := narrow(t, "/vms", "/sdn/zones/localnetwork/vmbr0/7", "/sdn/zones/localnetwork/vmbr0/8")
	c.ok("PUT", "/nodes/pve1/qemu/101/config", "net1", "virtio,bridge=vmbr0,trunks=7-8")
	c.refused(403, "Permission check failed (/sdn/zones/localnetwork/vmbr0/9, SDN.Use)", "PUT", "/nodes/pve1/qemu/101/config",
		"net1", "virtio,bridge=vmbr0,tag=8,trunks=7;9")
}

func TestPermissionsFilterLists(t *testing.T) { simulated(t, testPermissionsFilterLists) }

func testPermissionsFilterLists(t *testing.T, g *WithT) {
	c := narrow(t, "/vms/101")
	rows := c.ok("GET", "/cluster/resources")
	g.Expect(rows).To(ContainElement(HaveKeyWithValue("id", "qemu/101")))
	g.Expect(rows).NotTo(ContainElement(Or(HaveKeyWithValue("id", "qemu/9000"), HaveKeyWithValue("type", "storage"))))
	g.Expect(rows).To(ContainElement(fields("id", "node/pve1", "maxmem", nil)), "host is listed without usage")
	g.Expect(c.ok("GET", "/nodes/pve1/storage")).To(BeEmpty())
	c.refused(403, "Permission check failed (/, Sys.Audit)", "GET", "/cluster/status")
}

func TestPermissionsOfPools(t *testing.T) { simulated(t, testPermissionsOfPools) }

func testPermissionsOfPools(t *testing.T, _ *WithT) {
	c := narrow(t, "/pool/kube", "/storage/local-lvm", "/sdn")
	c.ok("GET", "/nodes/pve1/qemu/9000/config")
	c.refused(403, "Permission check failed (/vms/101, VM.Audit)", "GET", "/nodes/pve1/qemu/101/config")
	c.refused(403, "Permission check failed", "POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "pool", "kube")
	c.ok("GET", "/nodes/pve1/qemu/300/config")
	c.task("DELETE", "/nodes/pve1/qemu/300")
	c.refused(403, "Permission check failed (/vms/300, VM.Audit)", "GET", "/nodes/pve1/qemu/300/config")
}

func TestPermissionsOfRootToken(t *testing.T) { simulated(t, testPermissionsOfRootToken) }

func testPermissionsOfRootToken(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Users[1].Tokens = []pvesim.Token{{ID: "admin", Secret: "s"}}
	c := startSim(t, s, pvesim.Options{}).as("root@pam!admin=s")
	c.ok("POST", "/access/roles", "roleid", "Small", "privs", "VM.Audit VM.Clone")
	c.refused(500, "only root can set 'args' config", "PUT", "/nodes/pve1/qemu/101/config", "args", "-foo")
	a := c.do("POST", "/nodes/pve1/qemu/101/status/stop", "skiplock", "1")
	g.Expect(a.Errors["skiplock"]).To(Equal("Only root may use this option."), "skiplock: %d", a.Status)
}

func TestPrivilegesByVersion(t *testing.T) { simulated(t, testPrivilegesByVersion) }

func testPrivilegesByVersion(t *testing.T, g *WithT) {
	for version, reason := range map[string]string{
		"8.4": "Permission check failed (/vms/101, VM.Monitor)",
		"9.2": "Permission check failed (/vms/101, VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted)",
	} {
		s := pvesim.DefaultScenario(1)
		s.Version = version
		startSim(t, s, pvesim.Options{}).refused(403, reason, "POST", "/nodes/pve1/qemu/101/agent/ping")
	}
	s := pvesim.DefaultScenario(1)
	s.Version = "9.2"
	s.Roles[0].Privileges = append(s.Roles[0].Privileges, "VM.Monitor")
	g.Expect(pvesim.New(s, pvesim.Options{})).Error().To(HaveOccurred(), "9.2 accepted a role with VM.Monitor")
}
