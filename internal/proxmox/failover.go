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
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxResponse limits the size of a response. The resources of ten thousand guests
	// are about 5 MB.
	maxResponse = 128 << 20
	// probeTimeout limits the attempt to use a URL that failed while others work.
	probeTimeout = 5 * time.Second
	// hangTime is how long a request must have waited for its end by the caller's
	// deadline to count as a failure of the URL.
	hangTime = time.Second
)

// failover sends a request to a URL of the Cluster, and to the others if Proxmox does not
// respond there or has no quorum. Every Host of a Cluster serves the whole API.
//
// A request that a Host may have received is sent only once unless it is repeatable: a
// clone that is posted twice creates two VMs.
type failover struct {
	next    http.RoundTripper
	urls    *urlPool
	timeout time.Duration // of one attempt, including the body of the response
}

// send returns the response of the first Host that responds, whatever its status. If none
// does, it returns an error, and the response of a server that is not Proxmox, if any.
func (f *failover) send(ctx context.Context, req request, header http.Header) (response, error) {
	var (
		tried    []*clusterURL
		failures []error
		foreign  response
		refusal  *response // of a Host without quorum, or that does not reach the Host of the path
	)
	kind, trying := ErrUnreachable, time.Duration(0)
	for len(tried) < len(f.urls.all) && ctx.Err() == nil {
		url, release, err := f.urls.acquire(ctx, tried, req)
		if err != nil {
			failures = append(failures, err)
			break
		}
		began := time.Now()
		resp, sent, err := f.attempt(ctx, req, header, url, len(f.urls.all)-len(tried))
		trying += time.Since(began)
		release()
		tried = append(tried, url)
		if err == nil && !f.mayTryNext(req, resp, tried) {
			return resp, nil
		}
		failed := &attemptError{url: url.base, err: err}
		switch {
		case err == nil:
			refusal = &resp
			continue
		case errors.Is(err, ErrNoQuorum):
			kind = ErrNoQuorum
		case sent && !req.isRepeatable():
			return resp, &failure{kind: ErrUnknownOutcome, cause: failed}
		}
		failures, foreign = append(failures, failed), resp
	}
	if refusal != nil {
		return *refusal, nil
	}
	if errors.Is(kind, ErrUnreachable) && ctx.Err() != nil && trying < hangTime {
		kind = ErrNoTime
	}
	if len(failures) == 0 {
		failures = append(failures, ctx.Err())
	}
	return foreign, &failure{kind: kind, cause: errors.Join(failures...)}
}

// mayTryNext reports whether a Host refused a request that the next URL may execute. Without
// quorum there was no effect, so a write may be sent again. If the Host did not reach that of the
// request, only a read is: before a 595, Proxmox's proxy may have sent a PUT or DELETE through a
// connection that broke off. After a 596 it is not: there was a connection, and a Host that is
// busy should not get the request twice.
func (f *failover) mayTryNext(req request, resp response, tried []*clusterURL) bool {
	return resp.isRefusedForQuorum() ||
		resp.status == statusConnectFailed && req.host() != "" && req.isRepeatable() && f.urls.hasOther(tried, req)
}

// attempt sends the request to one of the remaining URLs, verifies the response and
// records whether the URL works. It returns a response with an error only if the response
// is not from Proxmox. sent reports whether the Host may have received any of
// the request. It is true as soon as there is a connection, since a write that failed may
// still have arrived.
func (f *failover) attempt(caller context.Context, req request, header http.Header, url *clusterURL, remaining int) (resp response, sent bool, err error) {
	var connected atomic.Bool
	timeout := f.attemptTimeout(caller, req, url, remaining)
	ctx, cancel := newAttemptContext(caller, req, timeout, &connected)
	defer cancel()
	responds, stop := f.probe(caller, req, header, url, timeout)
	defer stop()
	began := time.Now()
	resp, err = f.exchange(ctx, req, header, url.base)
	if err == nil && req.verify != nil {
		err = req.verify(resp, func(e endpoint) (response, error) {
			return f.exchange(ctx, newRequest(http.MethodGet, e, nil), header, url.base)
		})
		if err != nil {
			resp = response{}
		}
	}
	hangs := connected.Load() && isTimeout(resp, err)
	switch {
	case err == nil:
		f.urls.recordResponse(url, req.isPoll())
		f.urls.recordForwarded(url, req, resp.status < statusConnectFailed)
	case errors.Is(caller.Err(), context.Canceled), caller.Err() != nil && time.Since(began) < hangTime:
		// The caller ended the request.
	case hangs && timeout < hangTime:
		// The caller had almost no time left.
	case hangs && responds():
		// The Host of the path hangs, or this URL does not reach it.
		f.urls.recordForwarded(url, req, false)
	default:
		f.urls.recordFailure(url, err)
	}
	return resp, (connected.Load() || resp.status != 0) && !resp.isRefused(), err
}

// isTimeout reports whether there was no response in time, neither for the client nor for a
// load balancer.
func isTimeout(resp response, err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || resp.status == http.StatusGatewayTimeout
}

// probe returns a function that reports whether a URL responds itself. A request that its
// Host forwards to another one may hang there, and the URL works. The check starts when such
// a request has used a third of its time, and at least hangTime, so its result is known when
// the request times out. Other requests are that check themselves, and a single URL is used in
// any case. stop ends the check.
func (f *failover) probe(caller context.Context, req request, header http.Header, url *clusterURL, timeout time.Duration) (responds func() bool, stop func()) {
	if !req.isForwarded() || len(f.urls.all) == 1 {
		return func() bool { return false }, func() {}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), timeout)
	responds = sync.OnceValue(func() bool {
		own := header.Clone()
		own.Del("Content-Type") // there is no body
		// A login has no ticket, and Proxmox delays a 401 by 3 s. This call needs none.
		_, err := f.exchange(ctx, newRequest(http.MethodGet, at("/access/domains"), nil), own, url.base)
		return err == nil
	})
	timer := time.AfterFunc(max(timeout/3, hangTime), func() { responds() })
	return responds, func() {
		timer.Stop()
		cancel()
	}
}

// attemptTimeout returns how long to wait for one of the remaining URLs. A request that
// can be repeated leaves the others their share of the caller's time.
func (f *failover) attemptTimeout(caller context.Context, req request, url *clusterURL, remaining int) time.Duration {
	timeout := f.timeout
	if !req.isRepeatable() {
		return timeout
	}
	if f.urls.isProbe(url, req) {
		timeout = min(timeout, probeTimeout)
	}
	if deadline, ok := caller.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)/time.Duration(remaining))
	}
	return timeout
}

// exchange sends the request and reads the response. It fails if the response is not from
// Proxmox.
func (f *failover) exchange(ctx context.Context, req request, header http.Header, base string) (response, error) {
	// The reader's length is known, so the request is not chunked: Proxmox answers
	// 501 to chunks.
	attempt, err := http.NewRequestWithContext(ctx, req.method, base+req.endpoint.String(), bytes.NewReader(req.body))
	if err != nil {
		return response{}, err
	}
	attempt.Header = header
	got, err := f.next.RoundTrip(attempt)
	if err != nil {
		return response{}, err
	}
	body, err := io.ReadAll(io.LimitReader(got.Body, maxResponse))
	if err = errors.Join(err, got.Body.Close()); err != nil {
		return response{}, fmt.Errorf("reading the response: %w", err)
	}
	resp := newResponse(req, got, body)
	return resp, resp.foreignError()
}

// attemptError is the failure of one URL.
type attemptError struct {
	url string
	err error
}

func (e *attemptError) Error() string { return e.url + ": " + oneLine(e.err.Error()) }
func (e *attemptError) Unwrap() error { return e.err }
