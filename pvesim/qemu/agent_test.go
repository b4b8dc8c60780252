// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"encoding/json"
	"io"
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
	g.Expect(err).NotTo(HaveOccurred())
	got.ReadFile = nil // see TestAgentReadFile
	g.Expect(got).To(Equal(&pvesim.Agent{Hostname: "node-1", OS: map[string]string{"id": "debian", "version-id": "13"}, Interfaces: []pvesim.AgentInterface{
		{Name: "lo"}, {Name: "ens18", MAC: "bc:24:11:00:00:01", Addresses: []string{"10.10.128.5/16", "fe80::1/64"}},
	}}))
	g.Expect(a.read(context.Background())).Error().To(MatchError(ContainSubstring("guest-get-host-name has not been found")))
}

func TestAgentReadFile(t *testing.T) {
	t.Parallel()
	a := fakeAgent(t, map[string][]string{
		"guest-file-open":  {`1000`},
		"guest-file-read":  {`{"count": 5, "buf-b64": "aGVsbG8=", "eof": false}`, `{"count": 1, "buf-b64": "IQ==", "eof": true}`},
		"guest-file-close": {`{}`},
	})
	g := NewWithT(t)
	g.Expect(a.readFile(t.Context(), "/a")).To(BeEquivalentTo("hello!"))
	g.Expect(a.readFile(t.Context(), "/a")).Error().To(And(HaveOccurred(), Not(MatchError(fs.ErrNotExist))))
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
	g.Expect(a.exec(t.Context(), "echo", []string{"hello"})).To(Equal("hello"))
	g.Expect(a.exec(context.Background(), "false", nil)).Error().To(MatchError(ContainSubstring("exit code 2, signal 0: broken")))
	a.close()
	g.Expect(a.exec(context.Background(), "echo", nil)).Error().To(HaveOccurred(), "no error after the connection has ended")
}

// The guest agent is a program of the guest, which may send anything. A command ends with
// the connection at the latest.
func FuzzMonitor(f *testing.F) {
	f.Add([]byte(`{"return": {}, "id": "1"}`))
	f.Add([]byte(`{"event": "SHUTDOWN", "data": {}}{"id": "1", "error": {"desc": "x"}}{"id": "1"}`))
	f.Add([]byte("\xff{\"return\": [1], \"id\": 1}\n{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		local, remote := net.Pipe()
		m := newMonitor(local, func(string, json.RawMessage) {})
		go func() { _, _ = io.Copy(io.Discard, remote) }()
		done := make(chan error, 1)
		go func() {
			var result struct{ Status string }
			done <- m.execute(t.Context(), "query-status", nil, &result)
		}()
		go func() {
			_, _ = remote.Write(data)
			_ = remote.Close()
		}()
		<-done
		m.close()
	})
}
