// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// newAttemptContext returns the context of an attempt to send a request. A read ends
// with its caller. A request that changes something ends with its caller only until it
// has a connection: Proxmox carries out a request whose client is gone, so ending it
// would only lose the result, such as the task that it started. Its own timeout still
// applies. connected is set as soon as there is a connection.
func newAttemptContext(caller context.Context, req request, timeout time.Duration, connected *atomic.Bool) (context.Context, context.CancelFunc) {
	traced := httptrace.WithClientTrace(caller, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	if req.isRepeatable() {
		return context.WithTimeout(traced, timeout)
	}
	detached, cancel := context.WithCancelCause(context.WithoutCancel(traced))
	stop := context.AfterFunc(caller, func() {
		if !connected.Load() {
			cancel(caller.Err())
		}
	})
	ctx, end := context.WithTimeout(detached, timeout)
	return ctx, func() {
		stop()
		end()
		cancel(nil)
	}
}
