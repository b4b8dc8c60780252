// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// daemonWorkers is the number of processes that serve protected calls on a host. They work one call at a time: three calls
// that wait for a lock or an agent keep everybody else out.
const daemonWorkers = 3

// How long the parts of a call take that do not depend on storage.
const (
	callTime     = 4 * time.Millisecond  // an answer that the proxy gives by itself
	daemonTime   = 8 * time.Millisecond  // on the way to the daemon
	answerTime   = 25 * time.Millisecond // and back, with a fork in between
	proxyTimeout = 30 * time.Second      // how long the proxy waits for the daemon
	forkTime     = 15 * time.Millisecond // from the fork to the worker's first step
)

// Find resolves the method of a request, or says that there is none.
func (k *Kernel) Find(verb, path string) (*schema.Method, map[string]string, error) {
	m, values := k.Schema.Find(verb, path)
	if m == nil || k.routes[m.Name()] == nil {
		return nil, nil, &api.Error{
			Status: http.StatusNotImplemented, NoBreak: true,
			Message: fmt.Sprintf("Method '%s %s' not implemented", verb, strings.TrimSuffix(path, "/")),
		}
	}
	return m, values, nil
}

// Call serves a request: proxying to the host, permissions, parameters, then the method itself, in Proxmox's order.
func (k *Kernel) Call(ctx context.Context, r *api.Request) (api.Response, error) {
	m, values, err := k.Find(r.Verb, r.Path)
	if err != nil {
		return api.Response{}, err
	}
	r.Method = m
	if err := r.MergePath(values); err != nil {
		return api.Response{}, err
	}
	if m.NoToken && r.Who.Token != "" {
		return api.Response{}, api.Denied(fmt.Sprintf("URI '%s' not available with API token, need proper ticket.\n", m.Path))
	}
	if err := k.reach(ctx, r); err != nil {
		return api.Response{}, err
	}
	leave, err := k.enter(ctx, r)
	if err != nil {
		return api.Response{}, err
	}
	defer leave()
	if err := k.authorize(r); err != nil {
		return api.Response{}, err
	}
	if errs := k.Schema.Validate(m, &r.Params); len(errs) > 0 {
		return api.Response{}, api.ParamError(errs)
	}
	if v, ok := r.Params.Values["vmid"]; ok {
		r.VMID, _ = strconv.Atoi(v)
	}
	return k.routes[m.Name()](ctx, r)
}

// enter waits for a worker of the host's daemon if the method needs one; leave gives it back after the answer's own time.
func (k *Kernel) enter(ctx context.Context, r *api.Request) (leave func(), err error) {
	if !r.Method.Protected {
		return func() {}, k.Clock.Sleep(ctx, callTime)
	}
	k.Mu.Lock()
	h := k.Host(r.Host)
	k.Mu.Unlock()
	if h == nil {
		if h = k.Serving(); h == nil {
			return nil, &api.Error{Status: 595, Message: "Connection refused", Bare: true}
		}
	}
	timer := time.NewTimer(k.Clock.Timeout(proxyTimeout))
	defer timer.Stop()
	select {
	case h.workers <- struct{}{}:
	case <-timer.C:
		return nil, &api.Error{Status: 596, Message: "Connection timed out", Bare: true}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := k.Clock.Sleep(ctx, daemonTime); err != nil {
		<-h.workers
		return nil, err
	}
	return func() {
		_ = k.Clock.Sleep(ctx, answerTime) // a client that left frees the worker at once
		<-h.workers
	}, nil
}

// reach forwards to the host that the path names, as pveproxy does before anything else is checked.
func (k *Kernel) reach(ctx context.Context, r *api.Request) error {
	name, ok := r.Params.Values["node"]
	if !ok || !strings.HasPrefix(r.Method.Path, "/nodes/{node}") {
		return nil
	}
	serving := k.Serving()
	if name == "localhost" && serving != nil {
		name = serving.Name
		r.Params.Values["node"] = name
	}
	r.Host = name
	if r.Method.ProxyTo == "" {
		return nil
	}
	k.Mu.Lock()
	h := k.Host(name)
	var down string
	if h != nil && !h.Online {
		down = h.Unreachable
		if down == "" {
			down = "noroute"
		}
	}
	k.Mu.Unlock()
	if h == nil {
		return api.Failf("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
	}
	return k.unreachable(ctx, down)
}

// unreachable is what AnyEvent answers when the other host does not: a status of its own, and no body.
func (k *Kernel) unreachable(ctx context.Context, how string) error {
	wait, text := time.Duration(0), "Connection refused"
	switch how {
	case "":
		return nil
	case "noroute":
		wait, text = 3*time.Second, "No route to host"
	case "timeout":
		wait, text = 30*time.Second, "Connection timed out"
	}
	if err := k.Clock.Sleep(ctx, wait); err != nil {
		return err
	}
	return &api.Error{Status: 595, Message: text, Bare: true}
}
