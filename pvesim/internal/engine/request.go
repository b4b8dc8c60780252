// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// Request is one API call after authentication.
type Request struct {
	Verb   string
	Path   string // below /api2/json, decoded
	Who    access.Identity
	Params schema.Params
	Upload *Upload

	method *schema.Method
	host   string // the host named in the path
	vmid   int
}

// Upload is the file part of a multipart request.
type Upload struct {
	Name string
	Data []byte
	Temp string
}

// Response is what a method returns.
type Response struct {
	Data  any
	Total *int // some lists carry their full length
}

// Handler serves one method.
type Handler func(ctx context.Context, r *Request) (Response, error)

// Error is a refusal in Proxmox's form.
type Error struct {
	Status  int
	Message string
	Errors  map[string]string
	Bare    bool // no body at all
	NoBreak bool // the message carries no line break at its end
}

// Error is the text that Perl makes of the exception: inside a task, refusals carry their status and details.
func (e *Error) Error() string {
	switch e.Status {
	case http.StatusForbidden:
		return "403 " + e.Message
	case http.StatusBadRequest:
		text := "400 " + e.Message
		for _, k := range slices.Sorted(maps.Keys(e.Errors)) {
			text += "\n" + k + ": " + e.Errors[k]
		}
		return text
	}
	return e.Message
}

// Reason is the first line of the message: it becomes the status line's reason phrase.
func (e *Error) Reason() string {
	first, _, _ := strings.Cut(e.Message, "\n")
	return first
}

// failf is a "die" in a handler: status 500.
func failf(format string, args ...any) error {
	return &Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf(format, args...)}
}

// paramError refuses parameters by name.
func paramError(errs map[string]string) error {
	return &Error{Status: http.StatusBadRequest, Message: "Parameter verification failed.", Errors: errs}
}

func badParam(name, format string, args ...any) error {
	return paramError(map[string]string{name: fmt.Sprintf(format, args...)})
}

// denied is a failed permission check. Without a detail the text is bare.
func denied(detail string) error {
	if detail == "" {
		return &Error{Status: http.StatusForbidden, Message: "Permission check failed"}
	}
	return &Error{Status: http.StatusForbidden, Message: "Permission check failed (" + detail + ")"}
}

// Find resolves the method of a request, or says that there is none.
func (e *Engine) Find(verb, path string) (*schema.Method, map[string]string, error) {
	m, values := e.Schema.Find(verb, path)
	if m == nil || e.routes[m.Name()] == nil {
		return nil, nil, &Error{
			Status: http.StatusNotImplemented, NoBreak: true,
			Message: fmt.Sprintf("Method '%s %s' not implemented", verb, strings.TrimSuffix(path, "/")),
		}
	}
	return m, values, nil
}

// Call serves a request: proxying to the host, permissions, parameters, then the method itself, in Proxmox's order.
func (e *Engine) Call(ctx context.Context, r *Request) (Response, error) {
	m, values, err := e.Find(r.Verb, r.Path)
	if err != nil {
		return Response{}, err
	}
	r.method = m
	if err := r.mergePath(values); err != nil {
		return Response{}, err
	}
	if m.NoToken && r.Who.Token != "" {
		return Response{}, denied(fmt.Sprintf("URI '%s' not available with API token, need proper ticket.\n", m.Path))
	}
	if err := e.reach(ctx, r); err != nil {
		return Response{}, err
	}
	leave, err := e.enter(ctx, r)
	if err != nil {
		return Response{}, err
	}
	defer leave()
	if err := e.authorize(r); err != nil {
		return Response{}, err
	}
	if errs := e.Schema.Validate(m, &r.Params); len(errs) > 0 {
		return Response{}, paramError(errs)
	}
	if v, ok := r.Params.Values["vmid"]; ok {
		r.vmid, _ = strconv.Atoi(v)
	}
	return e.routes[m.Name()](ctx, r)
}

// enter waits for a worker of the host's daemon if the method needs one; leave gives it back after the answer's own time.
func (e *Engine) enter(ctx context.Context, r *Request) (leave func(), err error) {
	if !r.method.Protected {
		return func() {}, e.Clock.Sleep(ctx, callTime)
	}
	e.mu.Lock()
	h := e.host(r.host)
	e.mu.Unlock()
	if h == nil {
		if h = e.Serving(); h == nil {
			return nil, &Error{Status: 595, Message: "Connection refused", Bare: true}
		}
	}
	timer := time.NewTimer(e.Clock.Timeout(proxyTimeout))
	defer timer.Stop()
	select {
	case h.workers <- struct{}{}:
	case <-timer.C:
		return nil, &Error{Status: 596, Message: "Connection timed out", Bare: true}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := e.Clock.Sleep(ctx, daemonTime); err != nil {
		<-h.workers
		return nil, err
	}
	return func() {
		_ = e.Clock.Sleep(ctx, answerTime) // a client that left frees the worker at once
		<-h.workers
	}, nil
}

// mergePath adds the path's values to the parameters; a parameter given in both places must agree.
func (r *Request) mergePath(values map[string]string) error {
	if r.Params.Values == nil {
		r.Params.Values = map[string]string{}
	}
	for name, v := range values {
		if old, dup := r.Params.Values[name]; dup && old != v {
			return badParam(name, "duplicate parameter (already defined in URI) with conflicting values!")
		}
		r.Params.Values[name] = v
	}
	return nil
}

// reach forwards to the host that the path names, as pveproxy does before anything else is checked.
func (e *Engine) reach(ctx context.Context, r *Request) error {
	name, ok := r.Params.Values["node"]
	if !ok || !strings.HasPrefix(r.method.Path, "/nodes/{node}") {
		return nil
	}
	serving := e.Serving()
	if name == "localhost" && serving != nil {
		name = serving.Name
		r.Params.Values["node"] = name
	}
	r.host = name
	if r.method.ProxyTo == "" {
		return nil
	}
	e.mu.Lock()
	h := e.host(name)
	var down string
	if h != nil && !h.Online {
		down = h.Unreachable
		if down == "" {
			down = "noroute"
		}
	}
	e.mu.Unlock()
	if h == nil {
		return failf("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
	}
	return e.unreachable(ctx, down)
}

// unreachable is what AnyEvent answers when the other host does not: a status of its own, and no body.
func (e *Engine) unreachable(ctx context.Context, how string) error {
	wait, text := time.Duration(0), "Connection refused"
	switch how {
	case "":
		return nil
	case "noroute":
		wait, text = 3*time.Second, "No route to host"
	case "timeout":
		wait, text = 30*time.Second, "Connection timed out"
	}
	if err := e.Clock.Sleep(ctx, wait); err != nil {
		return err
	}
	return &Error{Status: 595, Message: text, Bare: true}
}

var placeholder = regexp.MustCompile(`\{(\w+)\}`)

// authorize runs the permission check that the method's schema names.
func (e *Engine) authorize(r *Request) error {
	m := r.method
	switch {
	case m.User == "all" || m.User == "world":
		return nil
	case r.Who.IsRoot():
		return nil
	case len(m.Check) == 0:
		return denied("user != root@pam")
	}
	var check []any
	if err := json.Unmarshal(m.Check, &check); err != nil {
		return fmt.Errorf("reading the permissions of %s: %w", m.Name(), err)
	}
	return e.check(r, check)
}

func (e *Engine) check(r *Request, check []any) error {
	kind, _ := check[0].(string)
	switch kind {
	case "and":
		for _, sub := range check[1:] {
			if err := e.check(r, sub.([]any)); err != nil {
				return err
			}
		}
		return nil
	case "or":
		for _, sub := range check[1:] {
			if e.check(r, sub.([]any)) == nil {
				return nil
			}
		}
		return denied("")
	case "perm":
		return e.checkPerm(r, check)
	case "perm-modify":
		return e.checkPermModify(r, r.fill(check[1].(string)))
	case "userid-param":
		return e.checkUserParam(r, check[1].(string))
	case "userid-group":
		return e.checkUserGroup(r, check)
	default:
		return denied("")
	}
}

func (r *Request) fill(template string) string {
	return placeholder.ReplaceAllStringFunc(template, func(p string) string {
		return r.Params.Values[strings.Trim(p, "{}")]
	})
}

func (e *Engine) checkPerm(r *Request, check []any) error {
	var privs []string
	for _, p := range check[2].([]any) {
		privs = append(privs, p.(string))
	}
	options := map[string]string{}
	for i := 3; i+1 < len(check); i += 2 {
		options[fmt.Sprint(check[i])] = fmt.Sprint(check[i+1])
	}
	if param := options["require_param"]; param != "" && r.Params.Values[param] == "" {
		return denied("")
	}
	path := r.fill(check[1].(string))
	if options["any"] != "" {
		return e.needAny(r, path, privs...)
	}
	return e.need(r, path, privs...)
}

// need demands every privilege and names the first one that is missing.
func (e *Engine) need(r *Request, path string, privs ...string) error {
	have := e.Access.Permissions(r.Who, path)
	for _, p := range privs {
		if _, ok := have[p]; !ok {
			return denied(path + ", " + p)
		}
	}
	return nil
}

func (e *Engine) needAny(r *Request, path string, privs ...string) error {
	if e.Access.HasAny(r.Who, path, privs...) {
		return nil
	}
	return denied(path + ", " + strings.Join(privs, "|"))
}

// checkPermModify is the right to change the ACL of a path: Permissions.Modify, or Allocate on the object itself.
func (e *Engine) checkPermModify(r *Request, path string) error {
	privs := []string{"Permissions.Modify"}
	switch {
	case strings.HasPrefix(path, "/storage/"):
		privs = append(privs, "Datastore.Allocate")
	case strings.HasPrefix(path, "/vms/"):
		privs = append(privs, "VM.Allocate")
	case strings.HasPrefix(path, "/pool/"):
		privs = append(privs, "Pool.Allocate")
	}
	return e.needAny(r, path, privs...)
}

func (e *Engine) checkUserParam(r *Request, what string) error {
	userid := r.Params.Values["userid"]
	if what == "self" {
		if r.Who.Token == "" && r.Who.User == userid {
			return nil
		}
		return denied("")
	}
	_, realm, _ := strings.Cut(userid, "@")
	return e.need(r, "/access/realm/"+realm, what)
}

func (e *Engine) checkUserGroup(r *Request, check []any) error {
	var privs []string
	for _, p := range check[1].([]any) {
		privs = append(privs, p.(string))
	}
	return e.needAny(r, "/access/groups", privs...)
}

// value reads a parameter; ok is false if it was not given.
func (r *Request) value(name string) (string, bool) {
	v, ok := r.Params.Values[name]
	return v, ok
}

func (r *Request) on(name string) bool { return r.Params.Values[name] == "1" }

func (r *Request) integer(name string, def int) int {
	n, err := strconv.Atoi(r.Params.Values[name])
	if err != nil {
		return def
	}
	return n
}
