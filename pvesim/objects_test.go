// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// asRoot starts a cluster and returns a client with all permissions except those reserved for the root@pam login.
func asRoot(t *testing.T, s *pvesim.Scenario) *client {
	t.Helper()
	s.Users[1].Tokens = []pvesim.Token{{ID: "admin", Secret: "s"}}
	return startSim(t, s, pvesim.Options{}).as("root@pam!admin=s")
}

func TestMigrateAndMoveDisk(t *testing.T) { simulated(t, testMigrateAndMoveDisk) }

func testMigrateAndMoveDisk(t *testing.T) {
	s := pvesim.DefaultScenario(2)
	s.Storages = append(s.Storages, pvesim.Storage{ID: "zfs", Type: "zfspool", Content: []string{"images"}, Size: pvesim.TiB})
	c := asRoot(t, s)
	const vm = "/nodes/pve1/qemu/101"
	c.refused(500, "can't migrate running VM without --online", "POST", vm+"/migrate", "target", "pve2")
	if exit := c.exit(c.ok("POST", vm+"/migrate", "target", "pve2", "online", "1")); !strings.Contains(exit, "without with-local-disks") {
		t.Errorf("live migration with local disks ended with %q", exit)
	}
	if pre := c.ok("GET", vm+"/migrate").(map[string]any); pre["running"] != float64(1) || len(pre["local_disks"].([]any)) != 1 {
		t.Errorf("preconditions: %v", pre)
	}
	c.task("POST", vm+"/migrate", "target", "pve2", "online", "1", "with-local-disks", "1")
	moved := c.ok("GET", "/nodes/pve2/qemu/101/status/current").(map[string]any)
	if moved["status"] != "running" || moved["lock"] != nil {
		t.Errorf("after migration: %v", moved)
	}
	c.task("POST", "/nodes/pve2/qemu/101/move_disk", "disk", "scsi0", "storage", "zfs", "delete", "1")
	if conf := c.config("pve2", 101); conf["scsi0"] != "zfs:vm-101-disk-0,size=20G" || conf["unused0"] != nil {
		t.Errorf("after moving the disk: %v", conf)
	}
	a := c.do("POST", "/nodes/pve2/qemu/101/migrate", "target", "pve2")
	if a.Errors["target"] != "target is local node." {
		t.Errorf("migration to the same host: %d %v", a.Status, a.Errors)
	}
}

func TestSnapshots(t *testing.T) { simulated(t, testSnapshots) }

func testSnapshots(t *testing.T) {
	c := asRoot(t, pvesim.DefaultScenario(1))
	const vm = "/nodes/pve1/qemu/101"
	c.task("POST", vm+"/snapshot", "snapname", "before")
	c.ok("PUT", vm+"/config", "description", "changed")
	if old := c.ok("GET", vm+"/snapshot/before/config").(map[string]any); old["description"] != "" {
		t.Errorf("snapshot config: %v", old)
	}
	c.task("POST", vm+"/snapshot/before/rollback")
	if d := c.config("pve1", 101)["description"]; d != nil {
		t.Errorf("description after rollback is %v", d)
	}
	c.refused(500, "unable to create template, because VM contains snapshots", "POST", vm+"/template")
	c.task("DELETE", vm+"/snapshot/before")
}

func TestFirewallSetsAndAliases(t *testing.T) { simulated(t, testFirewallSetsAndAliases) }

func testFirewallSetsAndAliases(t *testing.T) {
	c := asRoot(t, pvesim.DefaultScenario(1))
	for _, at := range []string{"/nodes/pve1/qemu/9000/firewall", "/cluster/firewall"} {
		c.ok("POST", at+"/ipset", "name", "trusted")
		c.ok("POST", at+"/ipset/trusted", "cidr", "10.0.0.0/8")
		c.ok("PUT", at+"/ipset/trusted/10.0.0.0%2F8", "comment", "inside")
		if e := row(c.ok("GET", at+"/ipset/trusted"), "cidr", "10.0.0.0/8"); e["comment"] != "inside" {
			t.Errorf("%s: %v", at, e)
		}
		c.refused(500, "IPSet 'trusted' is not empty", "DELETE", at+"/ipset/trusted")
		c.ok("DELETE", at+"/ipset/trusted/10.0.0.0/8")
		c.ok("DELETE", at+"/ipset/trusted")
		c.ok("POST", at+"/aliases", "name", "Gate", "cidr", "10.0.0.1")
		c.ok("PUT", at+"/aliases/gate", "cidr", "10.0.0.2")
		if e := c.ok("GET", at+"/aliases/gate").(map[string]any); e["cidr"] != "10.0.0.2" {
			t.Errorf("%s: %v", at, e)
		}
		c.ok("POST", at+"/rules", "type", "in", "action", "ACCEPT", "source", "gate", "enable", "1")
		c.ok("PUT", at+"/options", "enable", "1")
		if o := c.ok("GET", at+"/options").(map[string]any); o["enable"] != float64(1) {
			t.Errorf("%s: %v", at, o)
		}
	}
	// A clone copies the firewall rules of the template.
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	if rules := c.ok("GET", "/nodes/pve1/qemu/300/firewall/rules").([]any); len(rules) != 1 {
		t.Errorf("rules of the clone: %v", rules)
	}
	c.task("DELETE", "/nodes/pve1/qemu/300")
	if rules := c.ok("GET", "/nodes/pve1/qemu/300/firewall/rules").([]any); len(rules) != 0 {
		t.Errorf("rules still exist after the VM was destroyed: %v", rules)
	}
}

func TestRolesUsersTokens(t *testing.T) { simulated(t, testRolesUsersTokens) }

func testRolesUsersTokens(t *testing.T) {
	c := asRoot(t, pvesim.DefaultScenario(1))
	c.ok("POST", "/access/roles", "roleid", "Small", "privs", "VM.Audit")
	c.ok("PUT", "/access/roles/Small", "privs", "VM.Clone", "append", "1")
	if r := c.ok("GET", "/access/roles/Small").(map[string]any); len(r) != 2 {
		t.Errorf("role: %v", r)
	}
	c.refused(500, "update role failed: auto-generated role 'PVEAdmin' cannot be modified", "PUT", "/access/roles/PVEAdmin", "privs", "")
	c.ok("POST", "/access/users", "userid", "bob@pve", "password", "secret123")
	made := c.ok("POST", "/access/users/bob@pve/token/ci", "privsep", "0").(map[string]any)
	c.ok("PUT", "/access/acl", "path", "/vms", "users", "bob@pve", "roles", "Small")
	bob := c.as("bob@pve!ci=" + made["value"].(string))
	bob.ok("GET", "/nodes/pve1/qemu/101/config")
	bob.refused(403, "Permission check failed", "POST", "/access/users/bob@pve/token/more")
	c.ok("PUT", "/access/users/bob@pve/token/ci", "expire", "1")
	if a := bob.do("GET", "/version"); a.Status != 401 {
		t.Errorf("expired token: status %d", a.Status)
	}
	c.refused(403, "Permission check failed (URI '/access/password' not available with API token, need proper ticket.",
		"PUT", "/access/password", "userid", "bob@pve", "password", "newsecret")
	c.as("").ok("POST", "/access/ticket", "username", "bob@pve", "password", "secret123")
	c.ok("DELETE", "/access/users/bob@pve")
	if acl := c.ok("GET", "/access/acl").([]any); row(acl, "ugid", "bob@pve") != nil {
		t.Errorf("deleted user is still in the ACL: %v", acl)
	}
	c.ok("DELETE", "/access/roles/Small")
}

func TestHAResource(t *testing.T) { simulated(t, testHAResource) }

func testHAResource(t *testing.T) {
	c := asRoot(t, pvesim.DefaultScenario(1))
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.ok("POST", "/cluster/ha/resources", "sid", "vm:300", "state", "stopped")
	upid := c.ok("POST", "/nodes/pve1/qemu/300/status/start").(string)
	if !strings.Contains(upid, ":hastart:300:") {
		t.Errorf("task is %s", upid)
	}
	eventually(t, "the HA manager to start the VM", func() bool {
		return c.ok("GET", "/nodes/pve1/qemu/300/status/current").(map[string]any)["status"] == "running"
	})
	c.ok("POST", "/nodes/pve1/qemu/300/status/stop")
	eventually(t, "the HA manager to stop the VM", func() bool {
		return c.ok("GET", "/nodes/pve1/qemu/300/status/current").(map[string]any)["status"] == "stopped"
	})
	c.refused(500, "unable to remove VM 300 - used in HA resources and purge parameter not set.", "DELETE", "/nodes/pve1/qemu/300")
	c.task("DELETE", "/nodes/pve1/qemu/300", "purge", "1")
	if l := c.ok("GET", "/cluster/ha/resources").([]any); len(l) != 0 {
		t.Errorf("resource still exists after the VM was destroyed: %v", l)
	}
}

// TestHAManagerStopped requests a start while the HA manager does not run.
func TestHAManagerStopped(t *testing.T) { simulated(t, testHAManagerStopped) }

func testHAManagerStopped(t *testing.T) {
	s := pvesim.DefaultScenario(1)
	s.Users[1].Tokens = []pvesim.Token{{ID: "admin", Secret: "s"}}
	c := startSim(t, s, pvesim.Options{AdminListen: "127.0.0.1:0"}).as("root@pam!admin=s")
	status := func() string { return c.do("GET", "/cluster/ha/status/manager_status").Raw }
	const unused = `{"data":{"manager_status":{"node_status":{}},"quorum":{"node":"pve1","quorate":"1"}}}`
	if got := status(); got != unused {
		t.Errorf("got %s, want %s", got, unused)
	}
	admin(t, c.sim, "POST", "/ha/stopped", "")
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.ok("POST", "/cluster/ha/resources", "sid", "vm:300", "state", "stopped")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	time.Sleep(10 * time.Minute)
	if got := c.ok("GET", "/nodes/pve1/qemu/300/status/current").(map[string]any)["status"]; got != "stopped" || status() != unused {
		t.Errorf("without the HA manager, the VM is %v and the status %s", got, status())
	}
	if service := row(c.ok("GET", "/nodes/pve1/services"), "name", "pve-ha-crm"); service["active-state"] != "inactive" {
		t.Errorf("service: %v", service)
	}
	admin(t, c.sim, "DELETE", "/ha/stopped", "")
	eventually(t, "the HA manager to start the VM", func() bool {
		return c.ok("GET", "/nodes/pve1/qemu/300/status/current").(map[string]any)["status"] == "running"
	})
	if got := status(); !strings.Contains(got, `"node_status":{"pve1":"online"}`) {
		t.Errorf("status: %s", got)
	}
}

func TestSDNVirtualNetworks(t *testing.T) { simulated(t, testSDNVirtualNetworks) }

func testSDNVirtualNetworks(t *testing.T) {
	s := pvesim.DefaultScenario(1)
	s.Zones = []pvesim.Zone{{Zone: "lab", Type: "vlan"}}
	s.VNets = []pvesim.VNet{{VNet: "blue", Zone: "lab", Tag: 7}}
	s.Mappings = []pvesim.Mapping{{Kind: "pci", ID: "gpu", Map: []string{"node=pve1,path=0000:01:00.0,id=10de:2204"}}}
	c := asRoot(t, s)
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "net0", "virtio,bridge=blue", "hostpci0", "mapping=gpu")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	if l := c.ok("GET", "/cluster/mapping/pci").([]any); row(l, "id", "gpu") == nil {
		t.Errorf("mappings: %v", l)
	}
	c.task("PUT", "/cluster/sdn")
}

func TestSDNIPAM(t *testing.T) { simulated(t, testSDNIPAM) }

func testSDNIPAM(t *testing.T) {
	s := pvesim.DefaultScenario(1)
	s.Zones = []pvesim.Zone{{Zone: "lab", Type: "simple", IPAM: "pve", DHCP: "dnsmasq"}, {Zone: "plain", Type: "simple"}}
	s.VNets = []pvesim.VNet{{VNet: "blue", Zone: "lab", Subnet: "10.9.0.0/30", Gateway: "10.9.0.1"}, {VNet: "red", Zone: "plain", Subnet: "10.8.0.0/24"}}
	c := startSim(t, s, pvesim.Options{})
	if l := c.ok("GET", "/cluster/sdn/ipams").([]any); row(l, "ipam", "pve") == nil {
		t.Errorf("ipams: %v", l)
	}
	given := func() []any { return c.ok("GET", "/cluster/sdn/ipams/pve/status").([]any) }
	if l := given(); len(l) != 1 || row(l, "ip", "10.9.0.1")["gateway"] != 1.0 {
		t.Errorf("empty network: %v", l)
	}
	c.ok("PUT", "/nodes/pve1/qemu/101/config", "net0", "virtio=BC:24:11:00:00:01,bridge=blue", "net1", "virtio,bridge=red")
	found := row(given(), "ip", "10.9.0.2")
	if found["mac"] != "BC:24:11:00:00:01" || found["vmid"] != "101" || found["vnet"] != "blue" || found["subnet"] != "10.9.0.0/30" {
		t.Errorf("address of the guest: %v", found)
	}
	c.ok("PUT", "/nodes/pve1/qemu/101/config", "net0", "virtio=BC:24:11:00:00:02,bridge=blue")
	if found = row(given(), "ip", "10.9.0.2"); found["mac"] != "BC:24:11:00:00:02" {
		t.Errorf("changed MAC: %v", found)
	}
	c.refused(500, "Currently only PVE IPAM is supported!", "GET", "/cluster/sdn/ipams/netbox/status")
}

func TestContainerConfig(t *testing.T) { simulated(t, testContainerConfig) }

func testContainerConfig(t *testing.T) {
	s := pvesim.DefaultScenario(1)
	s.Guests = append(s.Guests, pvesim.Guest{VMID: 150, Name: "dns", Host: "pve1", Type: "lxc", Status: "running", Config: map[string]string{
		"memory": "512", "net0": "name=eth0,bridge=vmbr0,ip=192.168.0.53/24,gw=192.168.0.1",
	}})
	c := startSim(t, s, pvesim.Options{})
	config := c.ok("GET", "/nodes/pve1/lxc/150/config").(map[string]any)
	if config["net0"] != "name=eth0,bridge=vmbr0,ip=192.168.0.53/24,gw=192.168.0.1" || config["hostname"] != "dns" {
		t.Errorf("container: %v", config)
	}
	c.refused(500, "Configuration file 'nodes/pve1/lxc/101.conf' does not exist", "GET", "/nodes/pve1/lxc/101/config")
	c.refused(500, "Configuration file 'nodes/pve1/qemu-server/150.conf' does not exist", "GET", "/nodes/pve1/qemu/150/config")
}

func TestPCIDeviceExclusive(t *testing.T) { simulated(t, testPCIDeviceExclusive) }

func testPCIDeviceExclusive(t *testing.T) {
	s := pvesim.DefaultScenario(1)
	s.Mappings = []pvesim.Mapping{{Kind: "pci", ID: "gpu", Map: []string{"node=pve1,path=0000:01:00.0,id=10de:2204", "node=pve1,path=0000:02:00.0,id=10de:2204", "node=pve9,path=0000:01:00.0,id=10de:2204"}}}
	c := asRoot(t, s)
	for _, vmid := range []string{"300", "301", "302"} {
		c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", vmid)
		c.ok("PUT", "/nodes/pve1/qemu/"+vmid+"/config", "hostpci0", "mapping=gpu")
	}
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	c.task("POST", "/nodes/pve1/qemu/301/status/start")
	if exit := c.exit(c.ok("POST", "/nodes/pve1/qemu/302/status/start")); exit != "PCI device '0000:02:00.0' already in use by VMID '301'" {
		t.Errorf("start of a third VM with two devices ended with %q", exit)
	}
	c.task("POST", "/nodes/pve1/qemu/300/status/stop")
	c.task("POST", "/nodes/pve1/qemu/302/status/start")
}

func TestDirectoryMapping(t *testing.T) { simulated(t, testDirectoryMapping) }

func testDirectoryMapping(t *testing.T) {
	for _, release := range []string{"8.4", "9.2"} {
		s := pvesim.DefaultScenario(2)
		s.Version = release
		s.Mappings = []pvesim.Mapping{{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank/data"}}}
		c := asRoot(t, s)
		for host, template := range map[string]string{"pve1": "9000", "pve2": "9001"} {
			vm := "/nodes/" + host + "/qemu/30" + host[3:]
			c.task("POST", "/nodes/"+host+"/qemu/"+template+"/clone", "newid", "30"+host[3:])
			c.ok("PUT", vm+"/config", "virtiofs0", "dirid=data,cache=never")
			want := map[string]string{"pve1": "OK", "pve2": "directory mapping invalid: 'data' has no path on node 'pve2'"}[host]
			if exit := c.exit(c.ok("POST", vm+"/status/start")); exit != want {
				t.Errorf("start on %s ended with %q, want %q", host, exit, want)
			}
		}
		c.ok("PUT", "/nodes/pve2/qemu/302/config", "virtiofs0", "gone")
		if exit := c.exit(c.ok("POST", "/nodes/pve2/qemu/302/status/start")); exit != "directory mapping invalid: 'gone' does not exist" {
			t.Errorf("start without a mapping ended with %q", exit)
		}

		ours := c.as(pvesim.DefaultTokenID + "=" + pvesim.DefaultTokenSecret)
		const missing = "Permission check failed (/mapping/dir/gone, Mapping.Use)"
		ours.refused(403, missing, "PUT", "/nodes/pve1/qemu/301/config", "virtiofs1", "dirid=gone")
		ours.refused(403, missing, "POST", "/nodes/pve2/qemu/302/clone", "newid", "303", "full", "1")
		if seen := ours.ok("GET", "/cluster/mapping/dir").([]any); len(seen) != 0 {
			t.Errorf("user without permission on a mapping sees %v", seen)
		}
	}
}

func TestHardwareRNG(t *testing.T) { simulated(t, testHardwareRNG) }

func testHardwareRNG(t *testing.T) {
	for _, release := range []string{"8.4", "9.2"} {
		s := pvesim.DefaultScenario(1)
		s.Version = release
		c := asRoot(t, s)
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

func testHostMaintenanceAndArch(t *testing.T) {
	for _, release := range []string{"8.4", "9.2"} {
		s := pvesim.DefaultScenario(2)
		s.Version = release
		s.Hosts[1].Arch = "aarch64"
		c := asRoot(t, s)
		if err := c.sim.SetMaintenance("pve2", true); err != nil {
			t.Fatal(err)
		}
		if err := c.sim.SetMaintenance("pve9", true); err == nil {
			t.Error("maintenance mode of an unknown host was accepted")
		}
		host := row(c.ok("GET", "/cluster/resources", "type", "node").([]any), "node", "pve2")
		if reported := host["hastate"] == "maintenance" && host["host-arch"] == "aarch64"; reported != (release == "9.2") {
			t.Errorf("%s: host row is %v", release, host)
		}
		manager := c.ok("GET", "/cluster/ha/status/manager_status").(map[string]any)["manager_status"].(map[string]any)
		states := manager["node_status"].(map[string]any)
		if states["pve1"] != "online" || states["pve2"] != "maintenance" {
			t.Errorf("%s: HA manager reports %v", release, states)
		}
	}
}

func TestClockSkewAndGuestPowerOff(t *testing.T) { simulated(t, testClockSkewAndGuestPowerOff) }

func testClockSkewAndGuestPowerOff(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.sim.SetClockSkew(time.Hour)
	shown := c.ok("GET", "/nodes/pve1/time").(map[string]any)["time"].(float64)
	if ahead := time.Until(time.Unix(int64(shown), 0)); ahead < 59*time.Minute {
		t.Errorf("clock skew is %v", ahead)
	}
	if err := c.sim.PowerOffGuest(101); err != nil {
		t.Fatal(err)
	}
	if s := c.ok("GET", "/nodes/pve1/qemu/101/status/current").(map[string]any)["status"]; s != "stopped" {
		t.Errorf("VM is %v", s)
	}
	if err := c.sim.PowerOffGuest(101); err == nil {
		t.Error("power-off of a stopped guest was accepted")
	}
}

func TestGuestHung(t *testing.T) { simulated(t, testGuestHung) }

func testGuestHung(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{AdminListen: "127.0.0.1:0"})
	if status, text := admin(t, c.sim, "POST", "/guests/101/health", "health=hung"); status != 200 {
		t.Fatalf("setting guest health: %d %s", status, text)
	}
	if exit := c.exit(c.ok("POST", "/nodes/pve1/qemu/101/status/shutdown", "timeout", "5")); exit != "VM quit/powerdown failed - got timeout" {
		t.Errorf("shutdown of a hung guest ended with %q", exit)
	}
	if err := c.sim.SetGuestHealth(101, pvesim.HealthWell); err == nil {
		t.Error("hung guest recovered without a reset")
	}
	c.task("POST", "/nodes/pve1/qemu/101/status/reset")
	c.task("POST", "/nodes/pve1/qemu/101/status/shutdown", "timeout", "60")
	for _, bad := range []string{"health=dead", "", "health=well"} { // the VM is stopped
		if status, _ := admin(t, c.sim, "POST", "/guests/101/health", bad); status != 400 {
			t.Errorf("%q: %d", bad, status)
		}
	}
}
