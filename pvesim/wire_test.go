// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// dialTLS opens a TLS connection to inspect the raw HTTP traffic.
func (c *client) dialTLS() *tls.Conn {
	c.t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.sim.CAPEM())
	conn := tls.Client(c.dial(), &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12})
	if err := conn.HandshakeContext(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return conn
}

func TestKeepAlive(t *testing.T) { simulated(t, testKeepAlive) }

func testKeepAlive(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	conn := c.dialTLS()
	g.Expect(conn.ConnectionState().NegotiatedProtocol).NotTo(Equal("h2"), "HTTP/2 was negotiated; Proxmox supports only HTTP/1.1")
	r := bufio.NewReader(conn)
	ask := func(path string) (status string, header http.Header) {
		t.Helper()
		_, _ = fmt.Fprintf(conn, "GET /api2/json%s HTTP/1.1\r\nHost: x\r\nAuthorization: PVEAPIToken=%s\r\n\r\n", path, c.token)
		resp, err := http.ReadResponse(r, nil)
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = resp.Body.Close() }()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.Status, resp.Header
	}
	if status, header := ask("/version"); status != "200 OK" || header.Get("Server") != "pve-api-daemon/3.0" {
		t.Errorf("got %s %v", status, header)
	}
	if status, _ := ask("/nodes/pve1/qemu/777/config"); status != "500 Configuration file 'nodes/pve1/qemu-server/777.conf' does not exist" {
		t.Errorf("status line is %q", status)
	}
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	g.Expect(r.ReadByte()).Error().To(HaveOccurred(), "connection is still open after an error")
}

func TestRequestBodyInvalid(t *testing.T) { simulated(t, testRequestBodyInvalid) }

func testRequestBodyInvalid(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	for name, tc := range map[string]struct {
		method, typ, body string
		chunked           bool
		status            int
		reason            string
	}{
		"a body on DELETE": {method: "DELETE", typ: "application/json", body: `{"purge":1}`, status: 501, reason: "Unexpected content for method 'DELETE'"},
		"a body on GET":    {method: "GET", body: "a=1", status: 501, reason: "Unexpected content for method 'GET'"},
		"chunked":          {method: "PUT", body: "cores=1", chunked: true, status: 501, reason: "chunked transfer encoding not supported"},
		"plain text":       {method: "PUT", typ: "text/plain", body: "cores=1", status: 506, reason: "upload 'Content-Type 'text/plain' not implemented"},
		"too large":        {method: "PUT", body: "description=" + strings.Repeat("x", 600<<10), status: 501, reason: "for data too large"},
		"PATCH":            {method: "PATCH", status: 501, reason: "method 'PATCH' not available"},
	} {
		req, err := http.NewRequest(tc.method, c.sim.URL()+"/nodes/pve1/qemu/101/config", strings.NewReader(tc.body))
		g.Expect(err).NotTo(HaveOccurred())
		req.Header.Set("Content-Type", tc.typ)
		if tc.typ == "" {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		if tc.chunked {
			req.ContentLength, req.Body = -1, io.NopCloser(strings.NewReader(tc.body))
		}
		if a := c.send(req); a.Status != tc.status || a.Reason != tc.reason {
			t.Errorf("%s: got %d %q, want %d %q", name, a.Status, a.Reason, tc.status, tc.reason)
		}
	}
}

func TestRequestBodyFormats(t *testing.T) { simulated(t, testRequestBodyFormats) }

func testRequestBodyFormats(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	req, err := http.NewRequest("PUT", c.sim.URL()+"/nodes/pve1/qemu/9000/config?onboot=0", strings.NewReader(`{"onboot": true, "tags": ["B", "a"], "balloon": 0}`))
	g.Expect(err).NotTo(HaveOccurred())
	req.Header.Set("Content-Type", "application/json")
	a := c.send(req)
	g.Expect(a.Status).To(BeEquivalentTo(200), "%d %s %s", a.Status, a.Reason, a.Raw)
	conf := c.config("pve1", 9000)
	g.Expect(conf).To(fields("onboot", float64(0), "tags", "a;b", "balloon", float64(0)), "query did not take precedence, or a value was not decoded")
}

func TestLoginFailed(t *testing.T) { simulated(t, testLoginFailed) }

func testLoginFailed(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	for token, reason := range map[string]string{"": "No ticket", "kubernetes@pve!karpenter=wrong": "Authentication failed!"} {
		start := time.Now()
		a := c.as(token).do("GET", "/version")
		if a.Status != 401 || a.Reason != reason || a.Raw != "" {
			t.Errorf("got %d %q %q", a.Status, a.Reason, a.Raw)
		}
		g.Expect(time.Since(start)).To(Equal(3*time.Second), "want three seconds")
	}
}

func TestTicketCSRF(t *testing.T) { simulated(t, testTicketCSRF) }

func testTicketCSRF(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{}).as("")
	login := c.ok("POST", "/access/ticket", "username", "root@pam", "password", pvesim.RootPassword).(map[string]any)
	send := func(csrf string) response {
		req, err := http.NewRequest("PUT", c.sim.URL()+"/nodes/pve1/qemu/101/config", strings.NewReader("affinity=0-1"))
		g.Expect(err).NotTo(HaveOccurred())
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: login["ticket"].(string)})
		if csrf != "" {
			req.Header.Set("CSRFPreventionToken", csrf)
		}
		return c.send(req)
	}
	if a := send(""); a.Status != 401 || a.Reason != "Permission denied - invalid csrf token" {
		t.Errorf("without a token: %d %s", a.Status, a.Reason)
	}
	if a := send(login["CSRFPreventionToken"].(string)); a.Status != 200 {
		t.Errorf("setting affinity as root@pam: %d %s", a.Status, a.Reason)
	}
	token := c.as(pvesim.DefaultTokenID + "=" + pvesim.DefaultTokenSecret)
	token.refused(500, "only root can set 'affinity' config", "PUT", "/nodes/pve1/qemu/101/config", "affinity", "0")
	token.refused(500, "only root can set 'affinity' config", "PUT", "/nodes/pve1/qemu/101/config", "delete", "affinity")
}
