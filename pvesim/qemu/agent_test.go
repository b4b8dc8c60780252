// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// fakeAgent responds to commands with the given JSON values, one after the other.
func fakeAgent(t *testing.T, responses map[string][]string) *agent {
	t.Helper()
	local, remote := net.Pipe()
	a := newAgent(local)
	t.Cleanup(a.close)
	go func() {
		decoder, encoder := json.NewDecoder(remote), json.NewEncoder(remote)
		for {
			var request struct{ Execute, ID string }
			if decoder.Decode(&request) != nil {
				return
			}
			reply := map[string]any{"id": request.ID}
			if left := responses[request.Execute]; len(left) > 0 {
				reply["return"], responses[request.Execute] = json.RawMessage(left[0]), left[1:]
			} else {
				reply["error"] = map[string]string{"class": "CommandNotFound", "desc": "the command " + request.Execute + " has not been found"}
			}
			_ = encoder.Encode(reply) // the test ends
		}
	}()
	return a
}

func TestAgentRead(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	a := fakeAgent(t, map[string][]string{
		"guest-get-host-name": {`{"host-name": "node-1"}`},
		"guest-get-osinfo":    {`{"id": "debian", "version-id": "13"}`},
		"guest-network-get-interfaces": {`[{"name": "lo"}, {"name": "ens18", "hardware-address": "bc:24:11:00:00:01", "statistics": {"rx-bytes": 1},
			"ip-addresses": [{"ip-address-type": "ipv4", "ip-address": "10.10.128.5", "prefix": 16}, {"ip-address-type": "ipv6", "ip-address": "fe80::1", "prefix": 64}]}]`},
	})
	got, err := a.read(context.Background())
	if got != nil {
		got.ReadFile = nil // see TestAgentReadFile
	}
	want := &pvesim.Agent{Hostname: "node-1", OS: map[string]string{"id": "debian", "version-id": "13"}, Interfaces: []pvesim.AgentInterface{
		{Name: "lo"}, {Name: "ens18", MAC: "bc:24:11:00:00:01", Addresses: []string{"10.10.128.5/16", "fe80::1/64"}},
	}}
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got).To(Equal(want))
	g.Expect(a.read(context.Background())).Error().To(MatchError(ContainSubstring("guest-get-host-name has not been found")))
}

func TestAgentReadFile(t *testing.T) {
	t.Parallel()
	a := fakeAgent(t, map[string][]string{
		"guest-file-open":  {`1000`},
		"guest-file-read":  {`{"count": 5, "buf-b64": "aGVsbG8=", "eof": false}`, `{"count": 1, "buf-b64": "IQ==", "eof": true}`},
		"guest-file-close": {`{}`},
	})
	if content, err := a.readFile(context.Background(), "/a"); err != nil || string(content) != "hello!" {
		t.Errorf("got %q, %v", content, err)
	}
	if _, err := a.readFile(context.Background(), "/a"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got error %v", err)
	}
}

func TestAgentExec(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	a := fakeAgent(t, map[string][]string{
		"guest-exec": {`{"pid": 7}`, `{"pid": 8}`},
		"guest-exec-status": {
			`{"exited": false}`, `{"exited": true, "exitcode": 0, "out-data": "aGVsbG8="}`,
			`{"exited": true, "exitcode": 2, "err-data": "YnJva2Vu"}`,
		},
	})
	if out, err := a.exec(context.Background(), "echo", []string{"hello"}); err != nil || out != "hello" {
		t.Errorf("got %q, %v", out, err)
	}
	g.Expect(a.exec(context.Background(), "false", nil)).Error().To(MatchError(ContainSubstring("exit code 2, signal 0: broken")))
	a.close()
	g.Expect(a.exec(context.Background(), "echo", nil)).Error().To(HaveOccurred(), "no error after the connection has ended")
}
