// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"io"
	"os"
	"time"
)

// watchedBody is the body of a request whose client may stall.
type watchedBody struct {
	io.ReadCloser
	conn    *autoTLS // nil without a network
	timeout time.Duration
	stalled bool
}

// Read reads from the body. It fails if the client sends nothing for the stall timeout.
func (b *watchedBody) Read(p []byte) (int, error) {
	if b.conn == nil {
		return b.ReadCloser.Read(p)
	}
	_ = b.conn.SetReadDeadline(time.Now().Add(b.timeout)) // a closed connection fails the read
	n, err := b.ReadCloser.Read(p)
	_ = b.conn.SetReadDeadline(time.Time{})
	b.stalled = b.stalled || errors.Is(err, os.ErrDeadlineExceeded)
	return n, err
}
