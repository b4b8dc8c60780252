// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"io"
	"os"
	"time"
)

// stallTimeout is how long a client may pause in the middle of a body before the server closes the connection without
// a response. It is real time, because clients send in real time.
const stallTimeout = 5 * time.Second

// watchedBody is the body of a request whose client may stall.
type watchedBody struct {
	io.ReadCloser
	conn    *autoTLS // nil without a network
	stalled bool
}

// Read reads from the body. It fails if the client sends nothing for the stall timeout.
func (b *watchedBody) Read(p []byte) (int, error) {
	if b.conn == nil {
		return b.ReadCloser.Read(p)
	}
	_ = b.conn.SetReadDeadline(time.Now().Add(stallTimeout)) // a closed connection fails the read
	n, err := b.ReadCloser.Read(p)
	_ = b.conn.SetReadDeadline(time.Time{})
	b.stalled = b.stalled || errors.Is(err, os.ErrDeadlineExceeded)
	return n, err
}
