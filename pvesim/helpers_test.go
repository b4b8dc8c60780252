// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"bytes"
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

// scenarioOf returns the default scenario for a release.
func scenarioOf(release string, hosts int) *pvesim.Scenario {
	s := pvesim.DefaultScenario(hosts)
	s.Version = release
	return s
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
	NewWithT(c.t).Expect(err).NotTo(HaveOccurred())
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
	return c.send(c.request(method, path, params...))
}

// request returns a request with parameters in the query or in the body, depending on the method.
func (c *client) request(method, path string, params ...string) *http.Request {
	c.t.Helper()
	values := url.Values{}
	for i := 0; i+1 < len(params); i += 2 {
		values.Add(params[i], params[i+1])
	}
	if len(params) == 0 {
		return c.requestWith(method, path, "", "")
	}
	if method == http.MethodPost || method == http.MethodPut {
		return c.requestWith(method, path, "application/x-www-form-urlencoded", values.Encode())
	}
	return c.requestWith(method, path+"?"+values.Encode(), "", "")
}

// requestWith returns a request with this body.
func (c *client) requestWith(method, path, contentType, body string) *http.Request {
	c.t.Helper()
	req, err := http.NewRequest(method, c.url+path, strings.NewReader(body))
	NewWithT(c.t).Expect(err).NotTo(HaveOccurred())
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	return req
}

func (c *client) send(req *http.Request) response {
	c.t.Helper()
	a, err := c.try(req)
	NewWithT(c.t).Expect(err).NotTo(HaveOccurred(), "%s %s", req.Method, req.URL.Path)
	return a
}

func (c *client) try(req *http.Request) (response, error) {
	if c.token != "" {
		req.Header.Set("Authorization", "PVEAPIToken="+c.token)
	}
	resp, err := c.http.Do(req) //nolint:bodyclose // decode closes it
	if err != nil {
		return response{}, err
	}
	return decode(resp)
}

func decode(resp *http.Response) (response, error) {
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{}, err
	}
	a := response{Status: resp.StatusCode, Header: resp.Header, Raw: string(raw)}
	a.Reason = strings.TrimSpace(strings.TrimPrefix(resp.Status, fmt.Sprint(resp.StatusCode)))
	var parsed struct {
		Data   any               `json:"data"`
		Errors map[string]string `json:"errors"`
	}
	if json.Unmarshal(raw, &parsed) == nil {
		a.Data, a.Errors = parsed.Data, parsed.Errors
	}
	return a, nil
}

// ok expects status 200 and returns the data.
func (c *client) ok(method, path string, params ...string) any {
	c.t.Helper()
	a := c.do(method, path, params...)
	NewWithT(c.t).Expect(a.Status).To(Equal(http.StatusOK), "%s %s: %s %s", method, path, a.Reason, a.Raw)
	return a.Data
}

// refused expects an error with this status and reason.
func (c *client) refused(status int, reason, method, path string, params ...string) response {
	c.t.Helper()
	a := c.do(method, path, params...)
	NewWithT(c.t).Expect(a).To(answers(status, reason), "%s %s", method, path)
	return a
}

// answers matches a response with this status and reason.
func answers(status int, reason string) types.GomegaMatcher {
	return And(HaveField("Status", status), HaveField("Reason", reason))
}

// exit waits for a task and returns its exit status.
func (c *client) exit(upid any) string {
	c.t.Helper()
	id, _ := upid.(string)
	parts := strings.Split(id, ":")
	NewWithT(c.t).Expect(len(parts)).To(BeNumerically(">=", 9), "%v is not a task ID", upid)
	var status map[string]any
	eventually(c.t, "the end of task "+id, func() bool {
		status = c.object("/nodes/" + parts[1] + "/tasks/" + url.PathEscape(id) + "/status")
		return status["status"] == "stopped"
	})
	return status["exitstatus"].(string)
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
	NewWithT(c.t).Expect(c.ends(method, path, params...)).To(Equal("OK"), "%s %s: the task ended", method, path)
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
	part, _ := w.CreateFormFile("filename", name)
	_, _ = part.Write(data)
	_ = w.Close()
	return c.requestWith(http.MethodPost, "/nodes/"+host+"/storage/"+storage+"/upload", w.FormDataContentType(), b.String())
}

// eventually polls until cond returns true.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); !cond(); time.Sleep(100 * time.Millisecond) {
		NewWithT(t).Expect(time.Now().Before(deadline)).To(BeTrue(), "timed out waiting for %s", what)
	}
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

// admin sends a request to the admin API and returns the body of the response.
func (c *client) admin(status int, method, path, body string) string {
	c.t.Helper()
	g := NewWithT(c.t)
	req, err := http.NewRequest(method, c.sim.AdminURL()+path, strings.NewReader(body))
	g.Expect(err).NotTo(HaveOccurred())
	if strings.Contains(body, "=") {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := c.http.Do(req) //nolint:bodyclose // decode closes it
	g.Expect(err).NotTo(HaveOccurred())
	a, err := decode(resp)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.Status).To(Equal(status), "%s %s %q: %s", method, path, body, a.Raw)
	return a.Raw
}

func TestAdminAPI(t *testing.T) { simulated(t, testAdminAPI) }

func testAdminAPI(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(2)
	s.Guests[0].Name = "<b>ubuntu"
	c := startSim(t, s, pvesim.Options{AdminListen: "127.0.0.1:0"})
	g.Expect(c.admin(200, "POST", "/faults", `{"path": "/version", "count": 1, "status": 500, "message": "boom", "delay": "1s"}`)).To(ContainSubstring(`"id":1`))
	c.refused(500, "boom", "GET", "/version")
	c.ok("GET", "/version")
	g.Expect(c.admin(200, "GET", "/requests/counts", "")).To(ContainSubstring(`"GET /version":2`))
	for _, bad := range []string{`{"pfad": "/version"}`, `{"status": 200}`, `{`} {
		g.Expect(c.admin(400, "POST", "/faults", bad)).NotTo(BeEmpty())
	}
	c.admin(200, "POST", "/hosts/pve2/down", "how=refused")
	c.refused(595, "Connection refused", "GET", "/nodes/pve2/status")
	c.admin(400, "POST", "/hosts/nosuch/down", "")
	c.admin(200, "POST", "/guests/101/lock", "lock=backup")
	c.refused(500, "VM is locked (backup)", "PUT", "/nodes/pve1/qemu/101/config", "cores", "1")

	c.admin(200, "POST", "/hosts/pve2/up", "")
	c.fault(pvesim.Fault{Task: "qmstart", Fail: "no luck"})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "worker")
	page := c.admin(200, "GET", "/", "")
	for _, want := range []string{"pve2", "worker", "qmclone 9000", "task qmstart", "local-lvm", "&lt;b&gt;ubuntu", c.sim.URL()} {
		g.Expect(page).To(ContainSubstring(want))
	}
	g.Expect(page).NotTo(ContainSubstring("<b>ubuntu"), "guest name is not escaped")
}

func TestRestoreAndMigrate(t *testing.T) { simulated(t, testRestoreAndMigrate) }

func testRestoreAndMigrate(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "description", "mine", "full", "1")
	g.Expect(c.sim.RestoreCopy(300, 301)).To(Succeed())
	template, original := c.config("pve1", 9000), c.config("pve1", 300)
	for _, fresh := range []string{"net0", "smbios1", "scsi0"} {
		g.Expect(original[fresh]).NotTo(Or(BeNil(), Equal(template[fresh])), "the clone has the template's %s", fresh)
	}
	g.Expect(c.config("pve1", 301)).To(And(fields("smbios1", original["smbios1"], "description", "mine"), Not(fields("scsi0", original["scsi0"]))))
	g.Expect(c.sim.MigrateGuest(301, "pve2")).To(Succeed())
	c.refused(500, "Configuration file 'nodes/pve1/qemu-server/301.conf' does not exist", "GET", "/nodes/pve1/qemu/301/config")
	c.task("POST", "/nodes/pve2/qemu/301/status/start")
	c.task("POST", "/nodes/pve2/qemu/301/status/stop")
	c.task("DELETE", "/nodes/pve2/qemu/301")
	g.Expect(c.ok("GET", "/nodes/pve2/storage/local-lvm/content", "vmid", "301").([]any)).To(BeEmpty(), "leaked volumes")
}
