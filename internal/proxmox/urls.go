// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
)

// MaxConnections limits the concurrent requests to one URL. Most calls wait for one of
// three processes of a Host, so more requests would only time out in Proxmox's proxy.
const MaxConnections = 32

// retryFailedURL is when a poll tries a URL again that failed.
var retryFailedURL = backoff.Exponential{Initial: 10 * time.Second, Max: 5 * time.Minute}

// retryUnreached is when a read tries a URL again through which its Host was not reached.
const retryUnreached = 5 * time.Minute

// urlPool distributes the requests to a Cluster over its URLs: to the one with the
// fewest requests in progress of those that work, and to the others if none works.
//
// A URL that failed is not used until it has answered a poll. Polls are safe to repeat,
// and nothing waits for them.
//
// A URL that works may not reach all Hosts, to which its Host forwards requests. If a Host
// was not reached through a URL, requests for that Host use the others first. If it was
// reached through none, all are equal again: the Host is down or hangs, and no URL is to blame.
type urlPool struct {
	log logr.Logger
	all []*clusterURL

	mu   sync.Mutex
	turn int // where the search for the next URL begins
}

// clusterURL is the API of one Host.
type clusterURL struct {
	base  string        // https://host:8006/api2/json
	slots chan struct{} // one for each request in progress

	// The pool's mutex guards the fields below.
	load     int           // requests that are in progress or wait for a slot
	failures int           // consecutive; zero if it works
	noQuorum bool          // the last failure was a lack of quorum
	retryAt  time.Time     // when a poll may use it again after it failed
	failed   chan struct{} // closed while it does not work
	// unreached are the Hosts that were not reached through it, with the time when a read
	// may try it again.
	unreached map[string]time.Time
}

func newURLPool(urls []string, log logr.Logger) *urlPool {
	p := &urlPool{log: log}
	for _, base := range urls {
		p.all = append(p.all, &clusterURL{
			base: base, slots: make(chan struct{}, MaxConnections), failed: make(chan struct{}), unreached: map[string]time.Time{},
		})
	}
	return p
}

// acquire returns the best URL that was not tried yet, and waits until it has a free
// connection, unless it is for a poll. The caller calls release after the request. It
// fails if the context ends first.
func (p *urlPool) acquire(ctx context.Context, tried []*clusterURL, req request) (url *clusterURL, release func(), err error) {
	for {
		url, failed := p.pick(tried, req)
		if req.isPoll() {
			// A Cluster is not unreachable because launches use all connections.
			return url, func() { p.leave(url) }, nil
		}
		select {
		case url.slots <- struct{}{}:
			return url, func() { <-url.slots; p.leave(url) }, nil
		case <-failed:
			p.leave(url) // do not wait for the requests that hang
		case <-ctx.Done():
			p.leave(url)
			return nil, nil, fmt.Errorf("waiting for a connection, because each URL gets at most %d requests at a time: %w", MaxConnections, ctx.Err())
		}
	}
}

// pick returns the best URL that was not tried yet. If it works, pick also returns a
// channel that is closed as soon as it fails.
func (p *urlPool) pick(tried []*clusterURL, req request) (best *clusterURL, failed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	begin := p.turn
	for i := range p.all {
		index := (begin + i) % len(p.all)
		if url := p.all[index]; !slices.Contains(tried, url) && (best == nil || p.isBetter(url, best, req)) {
			best, p.turn = url, index+1
		}
	}
	best.load++
	if best.failures == 0 {
		failed = best.failed
	}
	return best, failed
}

func (p *urlPool) isBetter(a, b *clusterURL, req request) bool {
	switch rank := p.rank(a, req); {
	case rank != p.rank(b, req):
		return rank < p.rank(b, req)
	case a.failures > 0:
		return a.retryAt.Before(b.retryAt)
	}
	return a.load < b.load
}

// rank orders URLs: those that a poll should check again, those that work, those that do
// not reach the Host of the request, the others.
func (p *urlPool) rank(url *clusterURL, req request) int {
	switch {
	case p.reaches(url, req):
		return 1
	case url.failures == 0:
		return 2
	case req.isPoll() && !time.Now().Before(url.retryAt):
		return 0
	}
	return 3
}

// reaches reports whether a URL works and, as far as known, reaches the Host of a request. Only
// a request that can be repeated tries whether it does so again.
func (p *urlPool) reaches(url *clusterURL, req request) bool {
	retryAt, unreached := url.unreached[req.host()]
	return url.failures == 0 && (!unreached || req.isRepeatable() && !time.Now().Before(retryAt))
}

// hasOther reports whether a URL that was not tried yet reaches the Host of a request.
func (p *urlPool) hasOther(tried []*clusterURL, req request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.anyOther(tried, req)
}

func (p *urlPool) anyOther(tried []*clusterURL, req request) bool {
	return slices.ContainsFunc(p.all, func(url *clusterURL) bool { return !slices.Contains(tried, url) && p.reaches(url, req) })
}

func (p *urlPool) leave(url *clusterURL) {
	p.mu.Lock()
	defer p.mu.Unlock()
	url.load--
}

// isProbe reports whether a URL does not work or did not reach the Host of a request, and
// another one does.
func (p *urlPool) isProbe(url *clusterURL, req request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, unreached := url.unreached[req.host()]
	return (url.failures > 0 || unreached) && p.anyOther([]*clusterURL{url}, req)
}

// recordResponse records that a URL works. Only a poll can verify that it has quorum
// again.
func (p *urlPool) recordResponse(url *clusterURL, poll bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if url.failures == 0 || url.noQuorum && !poll {
		return
	}
	url.failures, url.noQuorum, url.failed = 0, false, make(chan struct{})
	if len(p.all) > 1 {
		p.log.Info("URL of the cluster works again", "url", url.base)
	}
}

// recordFailure records that a URL does not work.
func (p *urlPool) recordFailure(url *clusterURL, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if url.failures == 0 {
		close(url.failed)
		if len(p.all) > 1 {
			p.log.Info("URL of the cluster failed, using the others", "url", url.base, "cause", err.Error())
		}
	}
	url.noQuorum = errors.Is(err, ErrNoQuorum)
	url.retryAt = time.Now().Add(retryFailedURL.Delay(url.failures))
	url.failures++
}

// recordForwarded records whether the Host of a request was reached through a URL.
func (p *urlPool) recordForwarded(url *clusterURL, req request, reached bool) {
	host := req.host()
	if host == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, unreached := url.unreached[host]
	if reached {
		delete(url.unreached, host)
		return
	}
	url.unreached[host] = time.Now().Add(retryUnreached)
	if !unreached && p.anyOther(nil, req) {
		p.log.Info("URL of the cluster did not reach a host, using the others", "url", url.base, "host", host)
	}
}
