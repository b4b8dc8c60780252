// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// dialTLS opens a TLS connection to inspect the raw HTTP traffic.
func (c *client) dialTLS() *tls.Conn {
	c.t.Helper()
	config := c.http.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName, config.NextProtos = "127.0.0.1", []string{"h2", "http/1.1"}
	conn := tls.Client(c.dial(), config)
	NewWithT(c.t).Expect(conn.HandshakeContext(c.t.Context())).To(Succeed())
	return conn
}

func TestKeepAlive(t *testing.T) { simulated(t, testKeepAlive) }

func testKeepAlive(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	conn := c.dialTLS()
	g.Expect(conn.ConnectionState().NegotiatedProtocol).NotTo(Equal("h2"), "HTTP/2 was negotiated; Proxmox supports only HTTP/1.1")
	r := bufio.NewReader(conn)
	ask := func(path string) response {
		t.Helper()
		_, _ = fmt.Fprintf(conn, "GET /api2/json%s HTTP/1.1\r\nHost: x\r\nAuthorization: PVEAPIToken=%s\r\n\r\n", path, c.token)
		resp, err := http.ReadResponse(r, nil) //nolint:bodyclose // decode closes it
		g.Expect(err).NotTo(HaveOccurred())
		a, err := decode(resp)
		g.Expect(err).NotTo(HaveOccurred())
		return a
	}
	version := ask("/version")
	g.Expect([]string{version.Reason, version.Header.Get("Server")}).To(Equal([]string{"OK", "pve-api-daemon/3.0"}))
	g.Expect(ask("/nodes/pve1/qemu/777/config")).To(answers(500, "Configuration file 'nodes/pve1/qemu-server/777.conf' does not exist"))
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	g.Expect(r.ReadByte()).Error().To(HaveOccurred(), "connection is still open after an error")
}

func TestRequestBodyFormats(t *testing.T) { simulated(t, testRequestBodyFormats) }

func testRequestBodyFormats(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	req := c.requestWith("PUT", "/nodes/pve1/qemu/9000/config?onboot=0", "application/json", `{"onboot": true, "tags": ["B", "a"], "balloon": 0}`)
	g.Expect(c.send(req).Status).To(Equal(200))
	g.Expect(c.config("pve1", 9000)).To(fields("onboot", float64(0), "tags", "a;b", "balloon", float64(0)), "query did not take precedence, or a value was not decoded")
	plain := c.requestWith("PUT", "/nodes/pve1/qemu/101/config", "text/plain", "cores=1")
	g.Expect(c.send(plain)).To(answers(506, "upload 'Content-Type 'text/plain' not implemented"))
}

func TestLogin(t *testing.T) { simulated(t, testLogin) }

func testLogin(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	for token, reason := range map[string]string{"": "No ticket", "kubernetes@pve!karpenter=wrong": "Authentication failed!"} {
		start := time.Now()
		a := c.as(token).do("GET", "/version")
		g.Expect(a).To(And(answers(401, reason), HaveField("Raw", "")))
		g.Expect(time.Since(start)).To(Equal(3*time.Second), "want three seconds")
	}

	for _, header := range []string{"Cookie", "Authorization"} {
		g.Expect(c.asRoot(header)("GET", "/version").Status).To(Equal(200), "ticket in header %s", header)
	}

	g.Expect(c.asRoot("Cookie")("PUT", "/nodes/pve1/qemu/101/config", "affinity", "0-1").Status).To(Equal(200), "setting affinity as root@pam")
	c.refused(500, "only root can set 'affinity' config", "PUT", "/nodes/pve1/qemu/101/config", "delete", "affinity")
}

// TestCommonClients checks the calls that common clients send and that only report something.
func TestCommonClients(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		runSimulated(t, version, func(t *testing.T, g *WithT) {
			c := asRoot(t, scenarioOf(version, 1))
			for _, path := range []string{
				"/cluster/metrics/server", "/cluster/replication", "/cluster/sdn/dns", "/nodes/pve1/aplinfo", "/nodes/pve1/hardware/usb", "/nodes/pve1/replication",
			} {
				g.Expect(c.ok("GET", path)).To(BeEmpty(), path)
			}
			for path, want := range map[string]string{
				"/cluster/metrics":                                 `[{"name":"server"}]`,
				"/nodes/pve1/config":                               `{"digest":"da39a3ee5e6b4b0d3255bfef95601890afd80709"}`,
				"/nodes/pve1/hosts":                                "10.97.0.2 pve1.local pve1",
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
	c.refused(500, "No QEMU guest agent configured", "POST", "/nodes/pve1/qemu/101/agent/ping")
	c.refused(500, "unable to find serial interface 'serial0'", "POST", "/nodes/pve1/qemu/101/termproxy", "serial", "serial0")
	c.as(pvesim.DefaultTokenID+"="+pvesim.DefaultTokenSecret).
		refused(403, "Permission check failed (/vms/101, VM.Console)", "POST", "/nodes/pve1/qemu/101/termproxy")
}

func TestAgentExecAndMonitor(t *testing.T) {
	t.Parallel()
	for version, privilege := range map[string]string{"8.4": "VM.Monitor", "9.2": "VM.GuestAgent.Unrestricted"} {
		runSimulated(t, version, func(t *testing.T, g *WithT) {
			s := scenarioOf(version, 1)
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
