// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A scenario is refused in one line, or a simulator can be built from it.
func FuzzReadScenario(f *testing.F) {
	f.Add(goodScenario)
	f.Add("version: '9.2'\nhosts: [{name: a, sockets: 1, cores: 1, memory: 99999999999999T}]\nstorages: [{id: local, type: dir, size: 1.5G}]\n")
	f.Add("version: '8.4'\nhosts: &a [{name: a, sockets: 1, cores: 1, memory: 1G, bridges: [{name: vmbr0, cidr: x}]}]\nguests: [{vmid: 100, host: a, config: {scsi0: 'local:1'}}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := pvesim.ReadScenario(strings.NewReader(text))
		if err != nil {
			if !strings.Contains(err.Error(), "reading scenario") {
				t.Errorf("the error is %q", err)
			}
			return
		}
		for _, h := range s.Hosts {
			if h.Memory < 0 || h.DownloadRate < 0 {
				t.Errorf("host %s has %d bytes of memory and a download rate of %d", h.Name, h.Memory, h.DownloadRate)
			}
		}
		if sim, err := pvesim.New(s, pvesim.Options{Speed: 1000}); err == nil {
			sim.Close()
		}
	})
}

// Every request gets a response of Proxmox's form: its body is JSON, or a text with an error.
func FuzzRequests(f *testing.F) {
	f.Add("GET", "cluster/resources", "type=vm&_dc=1", "", "")
	f.Add("POST", "nodes/pve1/qemu/9000/clone", "", "application/json", `{"newid":300,"full":false,"name":null}`)
	f.Add("PUT", "nodes/pve1/qemu/101/config", "", "application/x-www-form-urlencoded", "net0=virtio%2Cbridge=vmbr0&tags=a&tags=b&delete=%zz")
	f.Add("POST", "nodes/pve1/storage/local/upload", "", "multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n--x\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"a.iso\"\r\n\r\na\r\n--x--\r\n")
	f.Add("DELETE", "nodes/pve1/qemu/101", "purge=1;force", "", "")
	f.Add("POST", "access/ticket", "", "", "username=root@pam&password=x")
	f.Add("PUT", "nodes/pve1/qemu/101/resize", "", "", "disk=scsi0&size=%2BNaN")
	f.Add("GET", "nodes/pve1/tasks", "limit=-1&start=x&since=9999999999999999999", "", "")
	scenario := pvesim.DefaultScenario(2)
	sim, err := pvesim.New(scenario, pvesim.Options{Speed: 1000})
	if err != nil {
		f.Fatal(err)
	}
	if err := sim.Start(f.Context()); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(sim.Close)
	api := httpClient(sim)
	api.Timeout = time.Minute
	api.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	f.Fuzz(func(t *testing.T, method, path, query, contentType, body string) {
		address := url.URL{Path: "/" + path, RawQuery: strings.ToValidUTF8(query, "")}
		request, err := http.NewRequestWithContext(t.Context(), method, sim.URL()+address.String(), strings.NewReader(body))
		if err != nil {
			return
		}
		request.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultTokenID+"="+pvesim.DefaultTokenSecret)
		if contentType != "" {
			request.Header.Set("Content-Type", contentType)
		}
		resp, err := api.Do(request)
		if err != nil {
			if strings.Contains(err.Error(), "invalid") {
				return // net/http refuses to send it
			}
			t.Fatalf("%s %s?%s: %v", method, path, query, err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") && method != http.MethodHead && !json.Valid(text) {
			t.Errorf("%s %s: the body is not JSON: %q", method, path, text)
		}
		if resp.StatusCode < 300 && method != http.MethodHead && method != http.MethodOptions && !json.Valid(text) {
			t.Errorf("%s %s: %d with %q", method, path, resp.StatusCode, text)
		}
	})
}
