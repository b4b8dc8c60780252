// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"io"
)

// stream is a TCP connection of this machine or of a gateway.
type stream interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// relay copies in both directions until both peers have ended their side, one
// connection fails, or ctx is done. It closes both connections.
func relay(ctx context.Context, a, b stream) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		_, _ = a.Close(), b.Close()
		close(closed)
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyHalf(a, b, cancel)
	}()
	copyHalf(b, a, cancel)
	<-done
	cancel()
	<-closed
}

func copyHalf(to, from stream, fail func()) {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		fail() // the other direction would wait for a peer that is gone
	}
}
