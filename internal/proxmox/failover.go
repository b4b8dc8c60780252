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
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

// maxAnswer bounds what is read of an answer. Resources of ten thousand guests
// are about 5 MB.
const maxAnswer = 128 << 20

// failover sends a request to the URL of the Cluster that worked last, and to
// the others when it does not answer. Every Host of a Cluster serves the whole
// API, so they are all the same to us.
//
// A request that may have been read by a Host is never sent twice unless it is
// a GET: a clone that was posted twice is two clones.
type failover struct {
	next    http.RoundTripper
	bases   []*url.URL // https://host:8006/api2/json
	current atomic.Int64
	timeout time.Duration // of one attempt, the reading of the answer included
	log     logr.Logger
}

// RoundTrip answers with whatever a Host said, its body already read, or with
// an error of this package.
func (f *failover) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := readBody(req)
	if err != nil {
		return nil, &failure{kind: ErrFailed, cause: fmt.Errorf("reading the request, %w", err)}
	}
	start := f.current.Load()
	var failures []error
	for i := range int64(len(f.bases)) {
		index := (start + i) % int64(len(f.bases))
		resp, sent, err := f.attempt(req, body, f.bases[index])
		if err == nil {
			if i > 0 && f.current.CompareAndSwap(start, index) {
				f.log.Info("switched to another URL of the cluster", "url", f.bases[index].String(), "because", errors.Join(failures...).Error())
			}
			return resp, nil
		}
		failed := &attemptError{url: f.bases[index].String(), err: err}
		if sent && req.Method != http.MethodGet {
			return nil, &failure{kind: ErrUnknownOutcome, cause: failed}
		}
		failures = append(failures, failed)
		if req.Context().Err() != nil {
			break // the caller gave up, not the Host
		}
	}
	return nil, &failure{kind: ErrUnreachable, cause: errors.Join(failures...)}
}

// attempt sends the request to one URL. sent tells whether the Host may have
// read any of it: true from the moment that there was a connection to write to,
// since a write that failed may still have arrived.
func (f *failover) attempt(req *http.Request, body []byte, base *url.URL) (resp *http.Response, sent bool, err error) {
	var connected atomic.Bool
	ctx, cancel := context.WithTimeout(req.Context(), f.timeout)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})

	attempt := req.Clone(ctx)
	attempt.URL = rebase(req.URL, base)
	attempt.Host = ""
	// A length that is known from the start: Proxmox answers 501 to chunks.
	attempt.ContentLength = int64(len(body))
	attempt.Body, attempt.GetBody = http.NoBody, nil
	if len(body) > 0 {
		attempt.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		attempt.Body = io.NopCloser(bytes.NewReader(body))
	}

	resp, err = f.next.RoundTrip(attempt)
	if err != nil {
		return nil, connected.Load(), err
	}
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	closeErr := resp.Body.Close()
	if err = errors.Join(err, closeErr); err != nil {
		return nil, true, fmt.Errorf("reading the answer, %w", err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(content))
	return resp, true, nil
}

// rebase moves a request to another URL of the Cluster. What go-proxmox made
// starts with the first URL's prefix, and all prefixes end with the same path.
func rebase(from, base *url.URL) *url.URL {
	moved := *from
	moved.Scheme, moved.Host = base.Scheme, base.Host
	_, rest, _ := strings.Cut(from.EscapedPath(), apiPath)
	moved.RawPath = base.EscapedPath() + rest
	if path, err := url.PathUnescape(moved.RawPath); err == nil {
		moved.Path = path
	}
	return &moved
}

func readBody(req *http.Request) ([]byte, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	content, err := io.ReadAll(req.Body)
	return content, errors.Join(err, req.Body.Close())
}

// attemptError says which URL failed.
type attemptError struct {
	url string
	err error
}

func (e *attemptError) Error() string { return e.url + ": " + oneLine(e.err.Error()) }
func (e *attemptError) Unwrap() error { return e.err }
