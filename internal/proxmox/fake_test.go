// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"bytes"
	"cmp"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	testTokenID = "kubernetes@pve!karpenter"
	testSecret  = "11111111-2222-3333-4444-555555555555"
	testUPID    = "UPID:pve1:00003921:00053CD7:6AF90394:qmclone:9001:kubernetes@pve!karpenter:"
)

// network connects clients to fakeHosts.
var network pvesim.MemoryNetwork

// simulated runs a parallel test with a fake clock: time passes only while the test, the client and the Hosts wait. So
// neither timeouts nor the order of events depend on the load of the machine, and waiting takes no real time.
func simulated(t *testing.T, test func(t *testing.T, g *WithT)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, NewWithT(t)) })
}

// runSimulated runs a subtest with a fake clock.
func runSimulated(t *testing.T, name string, test func(t *testing.T, g *WithT)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { simulated(t, test) })
}

// reply is the response of a fakeHost.
type reply struct {
	status int
	reason string // empty = the standard one
	body   string
	// header replaces the Content-Type of Proxmox, "name: value". There is no Server header
	// unless it has one, as behind a reverse proxy.
	header string
	// drop closes the connection without a response.
	drop bool
	// wait delays the response.
	wait time.Duration
}

func data(json string) reply { return reply{status: 200, body: `{"data":` + json + `}`} }

// failed returns an error response as sent since 8.4: reason phrase and message.
func failed(status int, text string) reply {
	return reply{status: status, reason: text, body: fmt.Sprintf(`{"data":null,"message":%q}`, text+"\n")}
}

type request struct {
	method, uri, body string
	header            http.Header
	length            int64
	chunked           bool
}

func (r request) String() string { return strings.TrimSpace(r.method + " " + r.uri + " " + r.body) }

// fakeHost is a TLS server with configurable responses that records requests. It writes
// the status lines itself, since net/http does not support reason phrases.
type fakeHost struct {
	server *httptest.Server
	mu     sync.Mutex
	seen   []request
}

func newFakeHost(t *testing.T, answer func(request) reply) *fakeHost {
	t.Helper()
	f := &fakeHost{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen := request{
			method: r.Method, uri: strings.TrimPrefix(r.RequestURI, "/api2/json"), body: string(body),
			header: r.Header.Clone(), length: r.ContentLength, chunked: len(r.TransferEncoding) > 0,
		}
		f.mu.Lock()
		f.seen = append(f.seen, seen)
		f.mu.Unlock()
		f.write(w, r, answer(seen))
	})
	f.server = serve(t, handler)
	f.server.StartTLS()
	return f
}

// serve returns a server in memory that is not started yet. It ends with the test.
func serve(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	config := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Hour}
	server := &httptest.Server{Listener: network.Listen(), Config: config}
	t.Cleanup(server.Close)
	return server
}

func (f *fakeHost) write(w http.ResponseWriter, r *http.Request, a reply) {
	select {
	case <-time.After(a.wait):
	case <-r.Context().Done():
		// Otherwise the response could arrive before the client has canceled.
		a.drop = true
	}
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if a.drop {
		return
	}
	reason := a.reason
	if reason == "" {
		reason = http.StatusText(a.status)
	}
	header := cmp.Or(a.header, "Content-Type: application/json;charset=UTF-8")
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n%s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", a.status, reason, header, len(a.body), a.body)
	_, _ = conn.Write(b.Bytes())
}

func (f *fakeHost) requests() []request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]request(nil), f.seen...)
}

// writes returns the requests that change something.
func (f *fakeHost) writes() []request {
	return slices.DeleteFunc(f.requests(), func(r request) bool { return r.method == http.MethodGet })
}

func (f *fakeHost) ca() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.server.Certificate().Raw}))
}

// config returns the config of a Cluster with these Hosts.
func config(hosts ...*fakeHost) proxmox.ClusterConfig {
	cfg := proxmox.ClusterConfig{Region: "dc1", TokenID: testTokenID, TokenSecret: testSecret}
	for _, h := range hosts {
		cfg.URLs = append(cfg.URLs, h.server.URL)
		cfg.CA = h.ca() // all servers of httptest have the same certificate
	}
	return cfg
}

func newClient(t testing.TB, cfg proxmox.ClusterConfig, opts proxmox.Options) proxmox.Client {
	t.Helper()
	if opts.DialContext == nil {
		opts.DialContext = network.DialContext
	}
	c, err := proxmox.New(cfg, opts)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return c
}

// clientOf returns the client of a Cluster with one Host.
func clientOf(t *testing.T, answer func(request) reply) (proxmox.Client, *fakeHost) {
	t.Helper()
	host := newFakeHost(t, answer)
	return newClient(t, config(host), proxmox.Options{}), host
}

// works answers reads with a version and writes with a task.
func works(r request) reply {
	if r.method == http.MethodGet {
		return data(version)
	}
	return data(`"` + testUPID + `"`)
}

// always returns the same reply to every request.
func always(a reply) func(request) reply { return func(request) reply { return a } }
