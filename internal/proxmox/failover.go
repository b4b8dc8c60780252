// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

// maxResponse limits the size of a response. The resources of ten thousand guests
// are about 5 MB.
const maxResponse = 128 << 20

// failover sends a request to the URL of the Cluster that worked last, and to the
// others if that one does not respond. Every Host of a Cluster serves the whole API.
//
// A request that a Host may have received is sent only once unless it is a GET: a
// clone that is posted twice creates two VMs.
type failover struct {
	next    http.RoundTripper
	urls    []string // https://host:8006/api2/json
	current atomic.Int64
	timeout time.Duration // of one attempt, including the body of the response
	log     logr.Logger
}

// send returns the response of the first Host that responds, whatever its status.
func (f *failover) send(ctx context.Context, req request, header http.Header) (response, error) {
	start := f.current.Load()
	var failures []error
	for i := range int64(len(f.urls)) {
		index := (start + i) % int64(len(f.urls))
		resp, sent, err := f.attempt(ctx, req, header, f.urls[index])
		if err == nil {
			if i > 0 && f.current.CompareAndSwap(start, index) {
				f.log.Info("switched to another URL of the cluster", "url", f.urls[index], "cause", errors.Join(failures...).Error())
			}
			return resp, nil
		}
		failed := &attemptError{url: f.urls[index], err: err}
		if sent && req.method != http.MethodGet {
			return response{}, &failure{kind: ErrUnknownOutcome, cause: failed}
		}
		failures = append(failures, failed)
		if ctx.Err() != nil {
			break // canceled by the caller: the other URLs would fail the same way
		}
	}
	return response{}, &failure{kind: ErrUnreachable, cause: errors.Join(failures...)}
}

// attempt sends the request to one URL. sent reports whether the Host may have
// received any of it. It is true as soon as there is a connection, since a write
// that failed may still have arrived.
func (f *failover) attempt(ctx context.Context, req request, header http.Header, base string) (resp response, sent bool, err error) {
	var connected atomic.Bool
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	// The reader's length is known, so the request is not chunked: Proxmox answers
	// 501 to chunks.
	attempt, err := http.NewRequestWithContext(ctx, req.method, base+req.endpoint.String(), bytes.NewReader(req.body))
	if err != nil {
		return response{}, false, err
	}
	attempt.Header = header
	got, err := f.next.RoundTrip(attempt)
	if err != nil {
		return response{}, connected.Load(), err
	}
	body, err := io.ReadAll(io.LimitReader(got.Body, maxResponse))
	if err = errors.Join(err, got.Body.Close()); err != nil {
		return response{}, true, fmt.Errorf("reading the response: %w", err)
	}
	return newResponse(req, got, body), true, nil
}

// attemptError is the failure of one URL.
type attemptError struct {
	url string
	err error
}

func (e *attemptError) Error() string { return e.url + ": " + oneLine(e.err.Error()) }
func (e *attemptError) Unwrap() error { return e.err }
