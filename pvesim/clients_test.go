// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// TestCommonClients checks the calls that common clients send and that only report something.
func TestCommonClients(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		runSimulated(t, version, func(t *testing.T, g *WithT) {
			s := pvesim.DefaultScenario(1)
			s.Version = version
			c := asRoot(t, s)
			for path, want := range map[string]string{
				"/cluster/metrics":                                 `[{"name":"server"}]`,
				"/cluster/metrics/server":                          `[]`,
				"/cluster/replication":                             `[]`,
				"/cluster/sdn/dns":                                 `[]`,
				"/nodes/pve1/aplinfo":                              `[]`,
				"/nodes/pve1/config":                               `{"digest":"da39a3ee5e6b4b0d3255bfef95601890afd80709"}`,
				"/nodes/pve1/hardware/usb":                         `[]`,
				"/nodes/pve1/hosts":                                "10.97.0.2 pve1.local pve1",
				"/nodes/pve1/replication":                          `[]`,
				"/nodes/pve1/rrddata?timeframe=hour":               `[{"time":`,
				"/nodes/pve1/qemu/101/rrddata?timeframe=hour":      `[{"time":`,
				"/nodes/pve1/services/pveproxy/state":              `"active-state":"active"`,
				"/nodes/pve1/storage/local/rrddata?timeframe=hour": `[{"time":`,
			} {
				g.Expect(c.do("GET", path)).To(And(HaveField("Status", 200), HaveField("Raw", ContainSubstring(want))), path)
			}
			g.Expect(row(c.ok("GET", "/nodes/pve1/services"), "name", "corosync")["state"]).To(Equal("dead"), "corosync of a standalone host")
			g.Expect(c.do("GET", "/nodes/pve1/services/nope/state")).To(And(HaveField("Status", 400), HaveField("Errors", HaveKey("service"))))
			used := row(c.ok("GET", "/nodes"), "node", "pve1")["ssl_fingerprint"]
			g.Expect(row(c.ok("GET", "/nodes/pve1/certificates/info"), "filename", "pve-ssl.pem")["fingerprint"]).To(Equal(used))
		})
	}
}

func TestConsole(t *testing.T) { simulated(t, testConsole) }

func testConsole(t *testing.T, g *WithT) {
	c := asRoot(t, pvesim.DefaultScenario(1))
	for _, kind := range []string{"termproxy", "vncproxy"} {
		console := c.ok("POST", "/nodes/pve1/qemu/101/"+kind).(map[string]any)
		g.Expect(console).To(And(HaveKeyWithValue("port", 5900.0), HaveKeyWithValue("ticket", HavePrefix("PVEVNC:root@pam:"))), kind)
		g.Expect(console["cert"] != nil).To(Equal(kind == "vncproxy"))
		g.Expect(c.exit(console["upid"])).To(Equal("connection timed out"), "the task of %s ended", kind)
	}
	c.refused(500, "unable to find serial interface 'serial0'", "POST", "/nodes/pve1/qemu/101/termproxy", "serial", "serial0")
	c.as(pvesim.DefaultTokenID+"="+pvesim.DefaultTokenSecret).
		refused(403, "Permission check failed (/vms/101, VM.Console)", "POST", "/nodes/pve1/qemu/101/termproxy")
}

func TestAgentExecAndMonitor(t *testing.T) {
	t.Parallel()
	for version, privilege := range map[string]string{"8.4": "VM.Monitor", "9.2": "VM.GuestAgent.Unrestricted"} {
		runSimulated(t, version, func(t *testing.T, g *WithT) {
			s := pvesim.DefaultScenario(1)
			s.Version = version
			s.Guests[1].Config["agent"] = "1"
			c := asRoot(t, s)
			limited := c.as(pvesim.DefaultTokenID + "=" + pvesim.DefaultTokenSecret)
			const vm = "/nodes/pve1/qemu/101"
			limited.refused(403, "Permission check failed (/vms/101, "+privilege+")", "POST", vm+"/agent/exec", "command", "true")
			c.refused(500, "QEMU guest agent is not running", "POST", vm+"/agent/exec", "command", "true")
			g.Expect(c.ok("POST", vm+"/monitor", "command", "info status")).To(Equal("VM status: running"))
			g.Expect(c.ok("POST", vm+"/monitor", "command", "nope")).To(Equal("unknown command: 'nope'"))
			a := limited.do("POST", vm+"/monitor", "command", "info version")
			g.Expect(a.Status == 200).To(Equal(version == "9.2"), "monitor with a limited token: %d %s", a.Status, a.Raw)
			limited.refused(403, map[string]string{
				"8.4": "Permission check failed (/vms/101, VM.Monitor)", "9.2": "Permission check failed (/, Sys.Modify)",
			}[version], "POST", vm+"/monitor", "command", "quit")
			c.refused(500, "VM 9000 not running", "POST", "/nodes/pve1/qemu/9000/monitor", "command", "info status")
		})
	}
}
