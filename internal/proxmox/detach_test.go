// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

// A request that changes something gets its connection in the moment in which its caller ends: either it is
// sent and goes on without its caller, or it is not sent.
func TestCallerEndsWhileConnecting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		for range 5000 {
			caller, end := context.WithCancel(t.Context())
			var connected atomic.Bool
			ctx, cancel := newAttemptContext(caller, request{method: http.MethodPost}, time.Minute, &connected)
			conn, proxmox := net.Pipe()
			go end()
			go httptrace.ContextClientTrace(ctx).GotConn(httptrace.GotConnInfo{Conn: conn})
			synctest.Wait()
			_ = proxmox.SetReadDeadline(time.Now().Add(-time.Second))
			_, err := proxmox.Read([]byte{0})
			isClosed := err.Error() == "EOF"
			g.Expect(ctx.Err() == nil).To(Equal(connected.Load()))
			g.Expect(isClosed).To(Equal(!connected.Load()))
			cancel()
		}
	})
}
