// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// daemonWorkers is the number of processes that serve protected calls on a host. Each serves one call at a time: three
// calls that wait for a lock or an agent block all others.
const daemonWorkers = 3

// Durations of the parts of a call.
const (
	callTime     = 4 * time.Millisecond  // a response of the proxy itself
	daemonTime   = 8 * time.Millisecond  // request to the daemon
	answerTime   = 25 * time.Millisecond // response of the daemon, including a fork
	proxyTimeout = 30 * time.Second      // of the proxy for the daemon
	forkTime     = 15 * time.Millisecond // from the fork to the worker's first step
)

// Find returns the method of a request and the values of the placeholders in its path. It fails with status 501 if no
// handler exists.
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

// Call serves a request in the order of Proxmox: proxying to the host, permissions, parameters, then the handler.
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
	if err := k.proxy(ctx, r); err != nil {
		return api.Response{}, err
	}
	leave, err := k.acquireWorker(ctx, r)
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
	if r.Bool("skiplock") && !r.Who.IsRoot() { // all methods with this parameter check it first
		return api.Response{}, api.BadParam("skiplock", "Only root may use this option.")
	}
	if v, ok := r.Params.Values["vmid"]; ok {
		r.VMID, _ = strconv.Atoi(v)
	}
	return k.routes[m.Name()](ctx, r)
}

// Read returns a handler that responds with the result of read, which runs under the mutex.
func Read(k *Kernel, read func(r *api.Request) (any, error)) api.Handler {
	return func(_ context.Context, r *api.Request) (api.Response, error) {
		k.Mu.Lock()
		defer k.Mu.Unlock()
		data, err := read(r)
		return api.Response{Data: data}, err
	}
}

// ReadVM is like Read for the VM in the path. The handler fails if the VM is not on the host.
func ReadVM(k *Kernel, read func(r *api.Request, g *Guest) (any, error)) api.Handler {
	return Read(k, func(r *api.Request) (any, error) {
		if g := k.FindVM(r.Host, r.VMID); g != nil {
			return read(r, g)
		}
		return nil, MissingConfigError(r.Host, r.VMID)
	})
}

// Change returns a handler that runs change under the mutex and responds without data.
func Change(k *Kernel, change func(r *api.Request) error) api.Handler {
	return Read(k, func(r *api.Request) (any, error) { return nil, change(r) })
}

// acquireWorker waits for a worker of the API daemon if the method needs one. The worker is busy until after release.
func (k *Kernel) acquireWorker(ctx context.Context, r *api.Request) (release func(), err error) {
	if !r.Method.Protected {
		return func() {}, k.Clock.Sleep(ctx, callTime)
	}
	k.Mu.Lock()
	h := k.executingHost(r)
	k.Mu.Unlock()
	if h == nil {
		return nil, &api.Error{Status: 595, Message: "Connection refused", Bare: true}
	}
	timer := time.NewTimer(k.Clock.LockTimeout(proxyTimeout))
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
		_ = k.Clock.Sleep(ctx, answerTime) // returns early if the client disconnects
		<-h.workers
	}, nil
}

// proxy forwards to the host in the path, as pveproxy does before other checks. It fails if the host is down.
func (k *Kernel) proxy(ctx context.Context, r *api.Request) error {
	name, ok := r.Params.Values["node"]
	if !ok || !strings.HasPrefix(r.Method.Path, "/nodes/{node}") {
		return nil
	}
	k.Mu.Lock()
	serving := k.ServingHost(r)
	if name == "localhost" && serving != nil {
		name = serving.Name
		r.Params.Values["node"] = name
	}
	r.Host = name
	h := k.Host(name)
	var down string
	if h != nil && !Sees(serving, h) {
		down = "noroute"
		if !h.Online {
			down = cmp.Or(h.Unreachable, down)
		}
	}
	k.Mu.Unlock()
	if r.Method.ProxyTo == "" {
		return nil
	}
	if h == nil {
		return api.Failf("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
	}
	return k.connectError(ctx, down)
}

// connectError returns the error of the proxy for a host that is down: status 595 and no body.
func (k *Kernel) connectError(ctx context.Context, how string) error {
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

// Permissions checks the permissions of callers.
type Permissions struct {
	Access *access.Store
}

// authorize runs the permission check in the schema of the method.
func (pm *Permissions) authorize(r *api.Request) error {
	m := r.Method
	switch {
	case m.User == "all", m.User == "world", r.Who.IsRoot():
		return nil
	case len(m.Check) == 0:
		return api.Denied("user != root@pam")
	}
	var check []any
	if err := json.Unmarshal(m.Check, &check); err != nil {
		return fmt.Errorf("parsing the permissions of %s: %w", m.Name(), err)
	}
	return pm.checkRule(r, check)
}

func (pm *Permissions) checkRule(r *api.Request, check []any) error {
	kind, _ := check[0].(string)
	switch kind {
	case "and":
		for _, sub := range check[1:] {
			if err := pm.checkRule(r, sub.([]any)); err != nil {
				return err
			}
		}
		return nil
	case "or":
		for _, sub := range check[1:] {
			if pm.checkRule(r, sub.([]any)) == nil {
				return nil
			}
		}
		return api.Denied("")
	case "perm":
		return pm.checkPerm(r, check)
	case "perm-modify":
		return pm.CheckPermModify(r, r.Fill(check[1].(string)))
	case "userid-param":
		return pm.checkUserParam(r, check[1].(string))
	case "userid-group":
		return pm.RequireAny(r, "/access/groups", privileges(check[1])...)
	default:
		return api.Denied("")
	}
}

func (pm *Permissions) checkPerm(r *api.Request, check []any) error {
	privs := privileges(check[2])
	options := map[string]string{}
	for i := 3; i+1 < len(check); i += 2 {
		options[fmt.Sprint(check[i])] = fmt.Sprint(check[i+1])
	}
	if param := options["require_param"]; param != "" && r.Params.Values[param] == "" {
		return api.Denied("")
	}
	path := r.Fill(check[1].(string))
	if options["any"] != "" {
		return pm.RequireAny(r, path, privs...)
	}
	return pm.Require(r, path, privs...)
}

// Require returns an error with the first privilege that the caller does not have on a path.
func (pm *Permissions) Require(r *api.Request, path string, privs ...string) error {
	have := pm.Access.Permissions(r.Who, path)
	for _, p := range privs {
		if _, ok := have[p]; !ok {
			return api.Denied(path + ", " + p)
		}
	}
	return nil
}

// RequireAny returns an error if the caller has none of the privileges on a path.
func (pm *Permissions) RequireAny(r *api.Request, path string, privs ...string) error {
	if pm.Access.HasAny(r.Who, path, privs...) {
		return nil
	}
	return api.Denied(path + ", " + strings.Join(privs, "|"))
}

// CheckPermModify returns an error if the caller cannot change the ACL of a path. This needs Permissions.Modify, or the
// privilege to allocate the object.
func (pm *Permissions) CheckPermModify(r *api.Request, path string) error {
	privs := []string{"Permissions.Modify"}
	switch {
	case strings.HasPrefix(path, "/storage/"):
		privs = append(privs, "Datastore.Allocate")
	case strings.HasPrefix(path, "/vms/"):
		privs = append(privs, "VM.Allocate")
	case strings.HasPrefix(path, "/pool/"):
		privs = append(privs, "Pool.Allocate")
	}
	return pm.RequireAny(r, path, privs...)
}

func (pm *Permissions) checkUserParam(r *api.Request, what string) error {
	userid := r.Params.Values["userid"]
	if what == "self" {
		if r.Who.Token == "" && r.Who.User == userid {
			return nil
		}
		return api.Denied("")
	}
	_, realm, _ := strings.Cut(userid, "@")
	return pm.Require(r, "/access/realm/"+realm, what)
}

// privileges returns the privileges in a rule of the schema.
func privileges(list any) []string {
	var out []string
	for _, p := range list.([]any) {
		out = append(out, p.(string))
	}
	return out
}
