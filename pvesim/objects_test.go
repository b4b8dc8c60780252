// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// asRoot starts a cluster and returns a client with all permissions except those reserved for the root@pam login.
func asRoot(t *testing.T, s *pvesim.Scenario) *client {
	t.Helper()
	return startRoot(t, s, pvesim.Options{})
}

// startRoot is asRoot with options.
func startRoot(t *testing.T, s *pvesim.Scenario, o pvesim.Options) *client {
	t.Helper()
	s.Users[1].Tokens = []pvesim.Token{{ID: "admin", Secret: "s"}}
	return startSim(t, s, o).as("root@pam!admin=s")
}

func TestMigrateAndMoveDisk(t *testing.T) { simulated(t, testMigrateAndMoveDisk) }

func testMigrateAndMoveDisk(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(2)
	s.Storages = append(s.Storages, pvesim.Storage{ID: "zfs", Type: "zfspool", Content: []string{"images"}, Size: pvesim.TiB})
	c := asRoot(t, s)
	const vm = "/nodes/pve1/qemu/101"
	c.refused(500, "can't migrate running VM without --online", "POST", vm+"/migrate", "target", "pve2")
	g.Expect(c.ends("POST", vm+"/migrate", "target", "pve2", "online", "1")).To(ContainSubstring("without with-local-disks"),
		"live migration with local disks ended")
	g.Expect(c.object(vm+"/migrate")).To(And(fields("running", 1.0), HaveKeyWithValue("local_disks", HaveLen(1))), "preconditions")
	c.task("POST", vm+"/migrate", "target", "pve2", "online", "1", "with-local-disks", "1")
	g.Expect(c.object("/nodes/pve2/qemu/101/status/current")).To(fields("status", "running", "lock", nil), "after migration")
	c.task("POST", "/nodes/pve2/qemu/101/move_disk", "disk", "scsi0", "storage", "zfs", "delete", "1")
	g.Expect(c.config("pve2", 101)).To(fields("scsi0", "zfs:vm-101-disk-0,size=20G", "unused0", nil), "after moving the disk")
	g.Expect(c.do("POST", "/nodes/pve2/qemu/101/migrate", "target", "pve2").Errors).To(HaveKeyWithValue("target", "target is local node."))
}

func TestSnapshots(t *testing.T) { simulated(t, testSnapshots) }

func testSnapshots(t *testing.T, g *WithT) {
	c := asRoot(t, pvesim.DefaultScenario(1))
	const vm = "/nodes/pve1/qemu/101"
	c.task("POST", vm+"/snapshot", "snapname", "before")
	c.ok("PUT", vm+"/config", "description", "changed")
	g.Expect(c.object(vm + "/snapshot/before/config")["description"]).To(BeEmpty(), "snapshot config")
	c.task("POST", vm+"/snapshot/before/rollback")
	g.Expect(c.config("pve1", 101)["description"]).To(BeNil(), "description after rollback")
	c.refused(500, "unable to create template, because VM contains snapshots", "POST", vm+"/template")
	c.task("DELETE", vm+"/snapshot/before")
}

func TestFirewallSetsAndAliases(t *testing.T) { simulated(t, testFirewallSetsAndAliases) }

func testFirewallSetsAndAliases(t *testing.T, g *WithT) {
	c := asRoot(t, pvesim.DefaultScenario(1))
	for _, at := range []string{"/nodes/pve1/qemu/9000/firewall", "/cluster/firewall"} {
		c.ok("POST", at+"/ipset", "name", "trusted")
		c.ok("POST", at+"/ipset/trusted", "cidr", "10.0.0.0/8")
		c.ok("PUT", at+"/ipset/trusted/10.0.0.0%2F8", "comment", "inside")
		g.Expect(row(c.ok("GET", at+"/ipset/trusted"), "cidr", "10.0.0.0/8")["comment"]).To(Equal("inside"), "%v", at)
		c.refused(500, "IPSet 'trusted' is not empty", "DELETE", at+"/ipset/trusted")
		c.ok("DELETE", at+"/ipset/trusted/10.0.0.0/8")
		c.ok("DELETE", at+"/ipset/trusted")
		c.ok("POST", at+"/aliases", "name", "Gate", "cidr", "10.0.0.1")
		c.ok("PUT", at+"/aliases/gate", "cidr", "10.0.0.2")
		g.Expect(c.object(at + "/aliases/gate")["cidr"]).To(Equal("10.0.0.2"), "%v", at)
		c.ok("POST", at+"/rules", "type", "in", "action", "ACCEPT", "source", "gate", "enable", "1")
		c.ok("PUT", at+"/options", "enable", "1")
		g.Expect(c.object(at + "/options")["enable"]).To(Equal(float64(1)))
	}
	// A clone copies the firewall rules of the template.
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	g.Expect(c.ok("GET", "/nodes/pve1/qemu/300/firewall/rules")).To(HaveLen(1))
	c.task("DELETE", "/nodes/pve1/qemu/300")
	g.Expect(c.ok("GET", "/nodes/pve1/qemu/300/firewall/rules")).To(BeEmpty(), "rules still exist after the VM was destroyed")
}

func TestRolesUsersTokens(t *testing.T) { simulated(t, testRolesUsersTokens) }

func testRolesUsersTokens(t *testing.T, g *WithT) {
	c := asRoot(t, pvesim.DefaultScenario(1))
	c.ok("POST", "/access/roles", "roleid", "Small", "privs", "VM.Audit")
	c.ok("PUT", "/access/roles/Small", "privs", "VM.Clone", "append", "1")
	g.Expect(c.object("/access/roles/Small")).To(HaveLen(2))
	c.refused(500, "update role failed: auto-generated role 'PVEAdmin' cannot be modified", "PUT", "/access/roles/PVEAdmin", "privs", "")
	c.ok("POST", "/access/users", "userid", "bob@pve", "password", "secret123")
	made := c.ok("POST", "/access/users/bob@pve/token/ci", "privsep", "0").(map[string]any)
	c.ok("PUT", "/access/acl", "path", "/vms", "users", "bob@pve", "roles", "Small")
	bob := c.as("bob@pve!ci=" + made["value"].(string))
	bob.ok("GET", "/nodes/pve1/qemu/101/config")
	bob.refused(403, "Permission check failed", "POST", "/access/users/bob@pve/token/more")
	c.ok("PUT", "/access/users/bob@pve/token/ci", "expire", "1")
	g.Expect(bob.do("GET", "/version").Status).To(BeEquivalentTo(401), "expired token: status")
	c.refused(403, "Permission check failed (URI '/access/password' not available with API token, need proper ticket.",
		"PUT", "/access/password", "userid", "bob@pve", "password", "newsecret")
	c.as("").ok("POST", "/access/ticket", "username", "bob@pve", "password", "secret123")
	c.ok("DELETE", "/access/users/bob@pve")
	g.Expect(row(c.ok("GET", "/access/acl"), "ugid", "bob@pve")).To(BeNil(), "deleted user is still in the ACL")
	c.ok("DELETE", "/access/roles/Small")
}

func TestHAResource(t *testing.T) { simulated(t, testHAResource) }

func testHAResource(t *testing.T, g *WithT) {
	c := startRoot(t, pvesim.DefaultScenario(1), pvesim.Options{AdminListen: "127.0.0.1:0"})
	status := func() string { return c.do("GET", "/cluster/ha/status/manager_status").Raw }
	const unused = `{"data":{"manager_status":{"node_status":{}},"quorum":{"node":"pve1","quorate":"1"}}}`
	g.Expect(status()).To(Equal(unused))
	c.admin(200, "POST", "/ha/stopped", "")
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.ok("POST", "/cluster/ha/resources", "sid", "vm:300", "state", "stopped")
	start := c.ok("POST", "/nodes/pve1/qemu/300/status/start")
	g.Expect(start).To(ContainSubstring(":hastart:300:"))
	g.Expect(c.exit(start)).To(Equal("OK"))
	time.Sleep(10 * time.Minute)
	g.Expect(c.object("/nodes/pve1/qemu/300/status/current")["status"]).To(Equal("stopped"))
	g.Expect(status()).To(Equal(unused))
	g.Expect(row(c.ok("GET", "/nodes/pve1/services"), "name", "pve-ha-crm")["active-state"]).To(Equal("inactive"))
	c.admin(200, "DELETE", "/ha/stopped", "")
	eventually(t, "the HA manager to start the VM", func() bool {
		return c.object("/nodes/pve1/qemu/300/status/current")["status"] == "running"
	})
	g.Expect(status()).To(ContainSubstring(`"node_status":{"pve1":"online"}`))
	g.Expect(c.ok("POST", "/nodes/pve1/qemu/300/status/stop")).To(ContainSubstring(":hastop:300:"))
	eventually(t, "the HA manager to stop the VM", func() bool {
		return c.object("/nodes/pve1/qemu/300/status/current")["status"] == "stopped"
	})
	c.refused(500, "unable to remove VM 300 - used in HA resources and purge parameter not set.", "DELETE", "/nodes/pve1/qemu/300")
	c.task("DELETE", "/nodes/pve1/qemu/300", "purge", "1")
	g.Expect(c.ok("GET", "/cluster/ha/resources")).To(BeEmpty(), "resource still exists after the VM was destroyed")
}

func TestSDNIPAM(t *testing.T) { simulated(t, testSDNIPAM) }

func testSDNIPAM(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Zones = []pvesim.Zone{{Zone: "lab", Type: "simple", IPAM: "pve", DHCP: "dnsmasq"}, {Zone: "plain", Type: "simple"}}
	s.VNets = []pvesim.VNet{{VNet: "blue", Zone: "lab", Subnet: "10.9.0.0/30", Gateway: "10.9.0.1"}, {VNet: "red", Zone: "plain", Subnet: "10.8.0.0/24"}}
	c := asRoot(t, s)
	g.Expect(row(c.ok("GET", "/cluster/sdn/ipams"), "ipam", "pve")).NotTo(BeNil())
	given := func() []any { return c.ok("GET", "/cluster/sdn/ipams/pve/status").([]any) }
	g.Expect(given()).To(ConsistOf(fields("ip", "10.9.0.1", "gateway", 1.0)))
	c.ok("PUT", "/nodes/pve1/qemu/101/config", "net0", "virtio=BC:24:11:00:00:01,bridge=blue", "net1", "virtio,bridge=red")
	found := row(given(), "ip", "10.9.0.2")
	g.Expect(found).To(fields("mac", "BC:24:11:00:00:01", "vmid", "101", "vnet", "blue", "subnet", "10.9.0.0/30"), "address of the guest")
	c.ok("PUT", "/nodes/pve1/qemu/101/config", "net0", "virtio=BC:24:11:00:00:02,bridge=blue")
	g.Expect(row(given(), "ip", "10.9.0.2")["mac"]).To(Equal("BC:24:11:00:00:02"))
	c.refused(500, "Currently only PVE IPAM is supported!", "GET", "/cluster/sdn/ipams/netbox/status")
	c.task("PUT", "/cluster/sdn")
	c.task("POST", "/nodes/pve1/qemu/101/status/stop")
	c.task("POST", "/nodes/pve1/qemu/101/status/start")
}

func TestContainerConfig(t *testing.T) { simulated(t, testContainerConfig) }

func testContainerConfig(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Guests = append(s.Guests, pvesim.Guest{VMID: 150, Name: "dns", Host: "pve1", Type: "lxc", Status: "running", Config: map[string]string{
		"memory": "512", "net0": "name=eth0,bridge=vmbr0,ip=192.168.0.53/24,gw=192.168.0.1",
	}})
	c := startSim(t, s, pvesim.Options{})
	config := c.object("/nodes/pve1/lxc/150/config")
	g.Expect(config).To(fields("net0", "name=eth0,bridge=vmbr0,ip=192.168.0.53/24,gw=192.168.0.1", "hostname", "dns"), "container")
	c.refused(500, "Configuration file 'nodes/pve1/lxc/101.conf' does not exist", "GET", "/nodes/pve1/lxc/101/config")
	c.refused(500, "Configuration file 'nodes/pve1/qemu-server/150.conf' does not exist", "GET", "/nodes/pve1/qemu/150/config")
}

func TestPCIDeviceExclusive(t *testing.T) { simulated(t, testPCIDeviceExclusive) }

func testPCIDeviceExclusive(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Mappings = []pvesim.Mapping{{Kind: "pci", ID: "gpu", Map: []string{"node=pve1,path=0000:01:00.0,id=10de:2204", "node=pve1,path=0000:02:00.0,id=10de:2204", "node=pve9,path=0000:01:00.0,id=10de:2204"}}}
	c := asRoot(t, s)
	for _, vmid := range []string{"300", "301", "302"} {
		c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", vmid)
		c.ok("PUT", "/nodes/pve1/qemu/"+vmid+"/config", "hostpci0", "mapping=gpu")
	}
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	c.task("POST", "/nodes/pve1/qemu/301/status/start")
	g.Expect(c.ends("POST", "/nodes/pve1/qemu/302/status/start")).To(Equal("PCI device '0000:02:00.0' already in use by VMID '301'"),
		"start of a third VM with two devices ended")
	c.task("POST", "/nodes/pve1/qemu/300/status/stop")
	c.task("POST", "/nodes/pve1/qemu/302/status/start")
}

func TestDirectoryMapping(t *testing.T) { simulated(t, testDirectoryMapping) }

func testDirectoryMapping(t *testing.T, g *WithT) {
	for _, release := range []string{"8.4", "9.2"} {
		s := scenarioOf(release, 2)
		s.Mappings = []pvesim.Mapping{{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank/data"}}}
		c := asRoot(t, s)
		for host, template := range map[string]string{"pve1": "9000", "pve2": "9001"} {
			vm := "/nodes/" + host + "/qemu/30" + host[3:]
			c.task("POST", "/nodes/"+host+"/qemu/"+template+"/clone", "newid", "30"+host[3:])
			c.ok("PUT", vm+"/config", "virtiofs0", "dirid=data,cache=never")
			want := map[string]string{"pve1": "OK", "pve2": "directory mapping invalid: 'data' has no path on node 'pve2'"}[host]
			g.Expect(c.ends("POST", vm+"/status/start")).To(Equal(want), "start on %s ended", host)
		}
		c.ok("PUT", "/nodes/pve2/qemu/302/config", "virtiofs0", "gone")
		g.Expect(c.ends("POST", "/nodes/pve2/qemu/302/status/start")).To(Equal("directory mapping invalid: 'gone' does not exist"),
			"start without a mapping ended")

		ours := c.as(pvesim.DefaultTokenID + "=" + pvesim.DefaultTokenSecret)
		const missing = "Permission check failed (/mapping/dir/gone, Mapping.Use)"
		ours.refused(403, missing, "PUT", "/nodes/pve1/qemu/301/config", "virtiofs1", "dirid=gone")
		ours.refused(403, missing, "POST", "/nodes/pve2/qemu/302/clone", "newid", "303", "full", "1")
		g.Expect(ours.ok("GET", "/cluster/mapping/dir").([]any)).To(BeEmpty(), "user without permission on a mapping sees")
	}
}

func TestHardwareRNG(t *testing.T) { simulated(t, testHardwareRNG) }

func testHardwareRNG(t *testing.T, _ *WithT) {
	for _, release := range []string{"8.4", "9.2"} {
		c := asRoot(t, scenarioOf(release, 1))
		ours := c.as(pvesim.DefaultTokenID + "=" + pvesim.DefaultTokenSecret)
		ours.ok("PUT", "/nodes/pve1/qemu/101/config", "rng0", "source=/dev/urandom")
		const missing = "Permission check failed (/mapping/hwrng, Mapping.Use)"
		ours.refused(403, missing, "PUT", "/nodes/pve1/qemu/101/config", "rng0", "source=/dev/hwrng")
		c.ok("PUT", "/nodes/pve1/qemu/9000/config", "rng0", "/dev/hwrng")
		ours.refused(403, missing, "POST", "/nodes/pve1/qemu/9000/clone", "newid", "303")
		c.ok("PUT", "/access/acl", "path", "/mapping/hwrng", "roles", "PVEMappingUser", "users", "kubernetes@pve")
		ours.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "303")
	}
}

func TestHostMaintenanceAndArch(t *testing.T) { simulated(t, testHostMaintenanceAndArch) }

func testHostMaintenanceAndArch(t *testing.T, g *WithT) {
	for _, release := range []string{"8.4", "9.2"} {
		s := scenarioOf(release, 2)
		s.Hosts[1].Arch = "aarch64"
		c := asRoot(t, s)
		g.Expect(c.sim.SetMaintenance("pve2", true)).To(Succeed())
		g.Expect(c.sim.SetMaintenance("pve9", true)).To(HaveOccurred(), "maintenance mode of an unknown host was accepted")
		host := row(c.ok("GET", "/cluster/resources", "type", "node"), "node", "pve2")
		g.Expect(host["hastate"] == "maintenance" && host["host-arch"] == "aarch64").To(Equal(release == "9.2"), "%s: host row is %v", release, host)
		manager := c.object("/cluster/ha/status/manager_status")["manager_status"].(map[string]any)
		g.Expect(manager["node_status"].(map[string]any)).To(fields("pve1", "online", "pve2", "maintenance"), "%s: HA manager reports", release)
	}
}

func TestClockSkewAndHungGuest(t *testing.T) { simulated(t, testClockSkewAndHungGuest) }

func testClockSkewAndHungGuest(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{AdminListen: "127.0.0.1:0"})
	c.sim.SetClockSkew(time.Hour)
	g.Expect(time.Until(time.Unix(int64(c.object("/nodes/pve1/time")["time"].(float64)), 0))).To(BeNumerically(">=", 59*time.Minute), "clock skew")
	g.Expect(c.sim.PowerOffGuest(101)).To(Succeed())
	g.Expect(c.object("/nodes/pve1/qemu/101/status/current")["status"]).To(Equal("stopped"))
	g.Expect(c.sim.PowerOffGuest(101)).To(HaveOccurred(), "power-off of a stopped guest was accepted")
	c.sim.SetClockSkew(0)
	c.task("POST", "/nodes/pve1/qemu/101/status/start")
	c.admin(200, "POST", "/guests/101/health", "health=hung")
	g.Expect(c.ends("POST", "/nodes/pve1/qemu/101/status/shutdown", "timeout", "5")).To(Equal("VM quit/powerdown failed - got timeout"),
		"shutdown of a hung guest ended")
	g.Expect(c.sim.SetGuestHealth(101, pvesim.HealthWell)).To(HaveOccurred(), "hung guest recovered without a reset")
	c.task("POST", "/nodes/pve1/qemu/101/status/reset")
	c.task("POST", "/nodes/pve1/qemu/101/status/shutdown", "timeout", "60")
	c.task("POST", "/nodes/pve1/qemu/101/status/start")
	c.admin(200, "POST", "/guests/101/health", "health=hung")
	c.task("POST", "/nodes/pve1/qemu/101/status/shutdown", "timeout", "5", "forceStop", "1")
	g.Expect(c.object("/nodes/pve1/qemu/101/status/current")["status"]).To(Equal("stopped"))
	for _, bad := range []string{"health=dead", "", "health=well"} { // the VM is stopped
		c.admin(400, "POST", "/guests/101/health", bad)
	}
}

// asRootOf returns a client of root@pam on a release.
func asRootOf(t *testing.T, release string) *client {
	t.Helper()
	c := asRoot(t, scenarioOf(release, 2))
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
	g.Expect(c.sim.HARules()).To(BeEmpty(), "rule without resources")
	g.Expect(c.sim.HAResources()).To(BeEmpty())
	c.refused(500, "cannot delete service 'vm:301', not HA managed!", "DELETE", "/cluster/ha/resources/vm:301")

	// A rule keeps VMs apart: one cannot be migrated to the host of the other.
	for _, sid := range []string{"vm:301", "vm:302"} {
		c.ok("POST", "/cluster/ha/resources", "sid", sid, "state", "stopped")
	}
	g.Expect(c.sim.MigrateGuest(301, "pve2")).To(Succeed())
	c.ok("POST", rules, append(negative, "vm:301,vm:302")...)
	c.refused(500, "cannot migrate resource 'vm:302' to node 'pve2': resource 'vm:301' on target node in negative affinity",
		"POST", "/nodes/pve1/qemu/302/migrate", "target", "pve2")
	c.refused(500, "cannot create group: ha groups have been migrated to rules", "POST", "/cluster/ha/groups", "group", "gg", "nodes", "pve1")
}

func TestHAGroups(t *testing.T) { simulated(t, testHAGroups) }

func testHAGroups(t *testing.T, g *WithT) {
	c := asRootOf(t, "8.4")
	c.refused(501, "Method 'GET /cluster/ha/rules' not implemented", "GET", "/cluster/ha/rules")
	c.refused(500, "HA group 'rack1' does not exist", "POST", "/cluster/ha/resources", "sid", "vm:300", "group", "rack1")
	c.ok("POST", "/cluster/ha/groups", "group", "rack1", "nodes", "pve1:2,pve2")
	c.ok("POST", "/cluster/ha/resources", "sid", "vm:300", "group", "rack1", "state", "stopped")
	c.ok("PUT", "/cluster/ha/resources/vm:300", "max_relocate", "0", "delete", "group")
	g.Expect(c.object("/cluster/ha/resources/vm:300")).To(fields("group", nil, "max_relocate", "0"))
	c.ok("DELETE", "/cluster/ha/resources/vm:300")
}
