// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/json"
	"io"
	"net"
	"testing"
)

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
