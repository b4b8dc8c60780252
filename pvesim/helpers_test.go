// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// client is a minimal HTTP client for the simulator's API.
type client struct {
	t     *testing.T
	sim   *pvesim.Simulator
	url   string
	http  *http.Client
	token string
}

// response is a decoded response.
type response struct {
	Status int
	Reason string
	Header http.Header
	Raw    string
	Data   any
	Errors map[string]string
	Total  int
}

// simulated runs a parallel test with a fake clock: time passes only while the test and the simulator wait. So neither
// durations nor the order of events depend on the load of the machine, and waiting takes no real time.
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

// startSim starts a simulator in memory until the test ends.
func startSim(t *testing.T, s *pvesim.Scenario, o pvesim.Options) *client {
	t.Helper()
	g := NewWithT(t)
	o.InMemory = true
	sim, err := pvesim.New(s, o)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sim.Start(context.Background())).To(Succeed())
	c := &client{t: t, sim: sim, url: sim.URL(), http: httpClient(sim), token: pvesim.DefaultTokenID + "=" + pvesim.DefaultTokenSecret}
	c.http.Transport.(*http.Transport).DialContext = sim.DialContext
	t.Cleanup(func() {
		sim.Close()
		c.http.CloseIdleConnections()
	})
	return c
}

// dial connects to the API without TLS.
func (c *client) dial() net.Conn {
	c.t.Helper()
	conn, err := c.sim.DialContext(c.t.Context(), "tcp", c.sim.Host())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func httpClient(sim *pvesim.Simulator) *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(sim.CAPEM())
	return &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, IdleConnTimeout: 4 * time.Second, MaxIdleConnsPerHost: 32,
	}}
}

// as returns a client with another token, "user@realm!name=secret"; empty for no token.
func (c *client) as(token string) *client {
	other := *c
	other.token = token
	return &other
}

// do sends a request with parameters "key", "value", ... in the query or in the body, depending on the method.
func (c *client) do(method, path string, params ...string) response {
	c.t.Helper()
	values := url.Values{}
	for i := 0; i+1 < len(params); i += 2 {
		values.Add(params[i], params[i+1])
	}
	var body io.Reader
	if method == http.MethodPost || method == http.MethodPut {
		if len(params) > 0 {
			body = strings.NewReader(values.Encode())
		}
	} else if len(params) > 0 {
		path += "?" + values.Encode()
	}
	req, err := http.NewRequest(method, c.url+path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return c.send(req)
}

func (c *client) send(req *http.Request) response {
	c.t.Helper()
	a, err := c.try(req)
	if err != nil {
		c.t.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	return a
}

func (c *client) try(req *http.Request) (response, error) {
	if c.token != "" {
		req.Header.Set("Authorization", "PVEAPIToken="+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return response{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{}, err
	}
	if resp.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return response{}, err
		}
		if raw, err = io.ReadAll(z); err != nil {
			return response{}, err
		}
	}
	a := response{Status: resp.StatusCode, Header: resp.Header, Raw: string(raw)}
	a.Reason = strings.TrimSpace(strings.TrimPrefix(resp.Status, fmt.Sprint(resp.StatusCode)))
	var parsed struct {
		Data   any               `json:"data"`
		Errors map[string]string `json:"errors"`
		Total  int               `json:"total"`
	}
	if json.Unmarshal(raw, &parsed) == nil {
		a.Data, a.Errors, a.Total = parsed.Data, parsed.Errors, parsed.Total
	}
	return a, nil
}

// ok expects status 200 and returns the data.
func (c *client) ok(method, path string, params ...string) any {
	c.t.Helper()
	a := c.do(method, path, params...)
	if a.Status != http.StatusOK {
		c.t.Fatalf("%s %s: %d %s %s", method, path, a.Status, a.Reason, a.Raw)
	}
	return a.Data
}

// refused expects an error with this status and reason.
func (c *client) refused(status int, reason, method, path string, params ...string) response {
	c.t.Helper()
	a := c.do(method, path, params...)
	if a.Status != status || a.Reason != reason {
		c.t.Errorf("%s %s: got %d %q %v, want %d %q", method, path, a.Status, a.Reason, a.Errors, status, reason)
	}
	return a
}

// exit waits for a task and returns its exit status.
func (c *client) exit(upid any) string {
	c.t.Helper()
	id, _ := upid.(string)
	parts := strings.Split(id, ":")
	if len(parts) < 9 {
		c.t.Fatalf("%v is not a task ID", upid)
	}
	deadline := time.Now().Add(10 * time.Minute)
	for time.Now().Before(deadline) {
		status := c.object("/nodes/" + parts[1] + "/tasks/" + url.PathEscape(id) + "/status")
		if status["status"] == "stopped" {
			return status["exitstatus"].(string)
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.t.Fatalf("task %s did not end", id)
	return ""
}

// object returns the data of a GET request.
func (c *client) object(path string, params ...string) map[string]any {
	c.t.Helper()
	return c.ok("GET", path, params...).(map[string]any)
}

// ends sends a request that starts a task and returns the task's exit status.
func (c *client) ends(method, path string, params ...string) string {
	c.t.Helper()
	return c.exit(c.ok(method, path, params...))
}

// task sends a request that starts a task and expects it to succeed.
func (c *client) task(method, path string, params ...string) {
	c.t.Helper()
	if exit := c.ends(method, path, params...); exit != "OK" {
		c.t.Fatalf("%s %s: task ended with %q", method, path, exit)
	}
}

// log returns a task's log.
func (c *client) log(upid any) []string {
	c.t.Helper()
	id := upid.(string)
	var lines []string
	for _, l := range c.ok("GET", "/nodes/"+strings.Split(id, ":")[1]+"/tasks/"+url.PathEscape(id)+"/log", "limit", "0").([]any) {
		lines = append(lines, l.(map[string]any)["t"].(string))
	}
	return lines
}

func (c *client) config(host string, vmid int) map[string]any {
	c.t.Helper()
	return c.object(fmt.Sprintf("/nodes/%s/qemu/%d/config", host, vmid))
}

// uploadISO sends an ISO image as multipart form to storage local of pve1.
func (c *client) uploadISO(name string, data []byte) response {
	c.t.Helper()
	return c.send(c.uploadRequest("pve1", "local", "iso", name, data))
}

func (c *client) uploadRequest(host, storage, content, name string, data []byte) *http.Request {
	c.t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.WriteField("content", content)
	part, err := w.CreateFormFile("filename", name)
	if err != nil {
		c.t.Fatal(err)
	}
	_, _ = part.Write(data)
	_ = w.Close()
	req, err := http.NewRequest(http.MethodPost, c.sim.URL()+"/nodes/"+host+"/storage/"+storage+"/upload", &b)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", w.FormDataContentType())
	return req
}

// eventually polls until cond returns true.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		if cond() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("timed out waiting for %s", what)
}

// fields matches an object with these values, given as key, value, ...; the value nil also if there is no such field.
func fields(pairs ...any) types.GomegaMatcher {
	want := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		want[pairs[i].(string)] = pairs[i+1]
	}
	return WithTransform(func(object map[string]any) map[string]any {
		found := map[string]any{}
		for key := range want {
			found[key] = object[key]
		}
		return found
	}, Equal(want))
}

// row returns the object in a list with this value of a field; nil if there is none.
func row(list any, key string, value any) map[string]any {
	rows, _ := list.([]any)
	for _, r := range rows {
		if m, ok := r.(map[string]any); ok && fmt.Sprint(m[key]) == fmt.Sprint(value) {
			return m
		}
	}
	return nil
}
