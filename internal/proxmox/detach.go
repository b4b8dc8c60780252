// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// newAttemptContext returns the context of an attempt to send a request. A read ends
// with its caller. A request that changes something ends with its caller only until it
// has a connection: Proxmox carries out a request whose client is gone, so ending it
// would only lose the result, such as the task that it started. Its own timeout still
// applies. connected is set as soon as there is a connection.
func newAttemptContext(caller context.Context, req request, timeout time.Duration, connected *atomic.Bool) (context.Context, context.CancelFunc) {
	if req.isRepeatable() {
		traced := httptrace.WithClientTrace(caller, &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
		})
		return context.WithTimeout(traced, timeout)
	}
	var first sync.Once // the connection, or the end of the caller
	traced := httptrace.WithClientTrace(context.WithoutCancel(caller), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			first.Do(func() { connected.Store(true) })
			if !connected.Load() {
				_ = info.Conn.Close() // nothing is sent
			}
		},
	})
	detached, cancel := context.WithCancelCause(traced)
	stop := context.AfterFunc(caller, func() {
		first.Do(func() { cancel(caller.Err()) })
	})
	ctx, end := context.WithTimeout(detached, timeout)
	return ctx, func() {
		stop()
		end()
		cancel(nil)
	}
}
