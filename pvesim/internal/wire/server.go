// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire serves HTTP like Proxmox's own server: reason phrases contain the error, connections close after errors,
// unknown paths return 501, and request bodies have particular rules.
package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// Call describes a request to hooks.
type Call struct {
	Verb     string
	Template string // "/nodes/{node}/qemu"; empty for unknown paths
	Path     string
	Who      string
	Host     string // of the endpoint; empty for the one of the cluster
}

// Fault is the effect of a hook on a request. The zero value has no effect.
type Fault struct {
	Delay      time.Duration
	Status     int // respond with this status instead of calling the handler
	Message    string
	AfterCall  bool // respond with the status after calling the handler
	DropBefore bool // close the connection before the call
	DropAfter  bool // close the connection after the call, without a response
	CutUpload  bool // like DropAfter, and remove the uploaded file before a task reads it
}

// Outcome is the result of a request.
type Outcome struct {
	Call
	Status int // 0 if the connection was dropped
	Start  time.Time
	Took   time.Duration
}

// Server serves a cluster over HTTP. The hooks can be nil.
type Server struct {
	Kernel *kernel.Kernel
	Fault  func(Call) Fault
	Record func(Outcome)
	// Host is the host whose API this is; empty means the first one that is up.
	Host string
	// StallTimeout is how long a client may pause in the middle of a body before the connection is closed without a
	// response. It is real time.
	StallTimeout time.Duration

	mu   sync.Mutex
	hang chan struct{} // open while the server hangs
}

// reply is a response before it is written.
type reply struct {
	status int
	reason string
	body   []byte
	typ    string // content type
	header map[string]string
	drop   bool
}

const (
	typeJSON = "application/json;charset=UTF-8"
	maxBody  = 512 << 10
)

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	call := Call{Verb: r.Method, Path: r.URL.Path, Host: s.Host}
	if s.isUnavailable(r) {
		s.record(call, 0, start)
		dropConnection(w)
		return
	}
	rep := s.serve(r, &call)
	if rep.drop {
		s.record(call, 0, start)
		dropConnection(w)
		return
	}
	s.record(call, rep.status, start)
	rep.write(w, r)
}

func (s *Server) record(c Call, status int, start time.Time) {
	if s.Record != nil {
		s.Record(Outcome{Call: c, Status: status, Start: start, Took: time.Since(start)})
	}
}

// serve returns the response to a request.
func (s *Server) serve(r *http.Request, call *Call) reply {
	if isPlain(r) {
		return redirect(r)
	}
	switch r.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
	default:
		return reply{status: http.StatusNotImplemented, reason: "method '" + r.Method + "' not available"}
	}
	if len(r.TransferEncoding) > 0 {
		return textError(http.StatusNotImplemented, "chunked transfer encoding not supported")
	}
	path, format, ok := splitPath(r.URL.Path)
	if !ok {
		return reply{status: http.StatusNotImplemented, reason: "no such uri"}
	}
	if format != "json" && format != "extjs" {
		return reply{status: http.StatusNotImplemented, reason: "no formatter for uri " + r.URL.Path}
	}
	call.Path = path
	if m, _, err := s.Kernel.Find(r.Method, path); err == nil {
		call.Template = m.Path
	}
	who, err := s.authenticate(r, path)
	if err != nil {
		_ = s.Kernel.Clock.Sleep(r.Context(), access.AuthDelay)
		return reply{status: http.StatusUnauthorized, reason: err.Error()}
	}
	call.Who = who.String()
	return s.callWithFaults(r, call, who, format)
}

// callWithFaults serves a call with the effect of the fault hook. A complete request is served even if the client
// disconnects before the response.
func (s *Server) callWithFaults(r *http.Request, call *Call, who access.Identity, format string) reply {
	params, upload, rep := s.readParams(r)
	if rep != nil {
		return *rep
	}
	var f Fault
	if s.Fault != nil {
		f = s.Fault(*call)
	}
	if f.Delay > 0 && s.Kernel.Clock.Sleep(s.Kernel.Context(), f.Delay) != nil {
		return reply{drop: true}
	}
	if f.DropBefore {
		return reply{drop: true}
	}
	if f.Status != 0 && !f.AfterCall {
		return faultReply(f)
	}
	if upload != nil {
		upload.Cut = f.CutUpload
	}
	out := s.call(&api.Request{Verb: r.Method, Path: call.Path, Who: who, Params: params, Upload: upload, Serving: s.Host}, format)
	if f.Status != 0 {
		return faultReply(f)
	}
	out.drop = out.drop || f.DropAfter || f.CutUpload
	return out
}

// faultReply returns the response for the status of a fault, in the form that this status has on a real host.
func faultReply(f Fault) reply {
	e := &api.Error{Status: f.Status, Message: f.Message}
	if e.Message == "" {
		e.Message = map[int]string{595: "No route to host", 596: "Connection timed out", 401: "Authentication failed!"}[f.Status]
	}
	if e.Message == "" {
		e.Message = http.StatusText(f.Status)
	}
	e.Bare = f.Status == http.StatusUnauthorized || f.Status >= 595
	return errorReply(e, "json")
}

// splitPath splits "/api2/json" off a path. Double and trailing slashes are ignored.
func splitPath(path string) (rest, format string, ok bool) {
	parts := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	if len(parts) < 2 || parts[0] != "api2" {
		return "", "", false
	}
	return "/" + strings.Join(parts[2:], "/"), parts[1], true
}

// isOpenPath reports whether a path needs no login.
func isOpenPath(verb, path string) bool {
	return (verb == http.MethodGet && path == "/access/domains") ||
		(path == "/access/ticket" && (verb == http.MethodGet || verb == http.MethodPost))
}

// authenticate returns the identity of a ticket or an API token. The ticket has precedence.
func (s *Server) authenticate(r *http.Request, path string) (access.Identity, error) {
	if isOpenPath(r.Method, path) {
		return access.Identity{}, nil
	}
	now := s.Kernel.Clock.Now()
	if c, err := r.Cookie("PVEAuthCookie"); err == nil {
		return s.ticket(r, c.Value, now)
	}
	header := r.Header.Get("Authorization")
	if cookie, ok := strings.CutPrefix(header, "PVEAuthCookie="); ok {
		return s.ticket(r, cookie, now)
	}
	if rest, ok := strings.CutPrefix(header, "PVEAPIToken"); ok && len(rest) > 1 && (rest[0] == '=' || rest[0] == ' ') {
		token, err := url.PathUnescape(rest[1:])
		if err != nil {
			return access.Identity{}, access.ErrAuth
		}
		return s.Kernel.Access.CheckToken(token, now)
	}
	if header != "" {
		return access.Identity{}, access.ErrAuth
	}
	return access.Identity{}, access.ErrNoTicket
}

func (s *Server) ticket(r *http.Request, cookie string, now time.Time) (access.Identity, error) {
	ticket, err := url.PathUnescape(cookie)
	if err != nil {
		return access.Identity{}, access.ErrAuth
	}
	user, err := s.Kernel.Signer.User(ticket, now)
	if err != nil {
		return access.Identity{}, err
	}
	if !s.Kernel.Access.IsActive(user, now) {
		return access.Identity{}, access.ErrAuth
	}
	if r.Method != http.MethodGet {
		if err := s.Kernel.Signer.CheckCSRF(r.Header.Get("CSRFPreventionToken"), user, now); err != nil {
			return access.Identity{}, err
		}
	}
	return access.Identity{User: user}, nil
}

func (s *Server) call(r *api.Request, format string) reply {
	resp, err := s.Kernel.Call(s.Kernel.Context(), r)
	var refused *api.Error
	switch {
	case err == nil:
		return success(resp, format)
	case errors.As(err, &refused):
		return errorReply(refused, format)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return reply{drop: true}
	default:
		return errorReply(&api.Error{Status: http.StatusInternalServerError, Message: err.Error()}, format)
	}
}

// dropConnection closes the connection without a response.
func dropConnection(w http.ResponseWriter) {
	if h, ok := w.(http.Hijacker); ok {
		if conn, _, err := h.Hijack(); err == nil {
			_ = conn.Close()
		}
	}
}

type connKey struct{}

// ConnContext stores the connection in the context of its requests, for http.Server.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

func connection(r *http.Request) *autoTLS {
	c, _ := r.Context().Value(connKey{}).(*autoTLS)
	return c
}

func isPlain(r *http.Request) bool {
	c := connection(r)
	return c != nil && c.isPlain()
}

// redirect returns the response to plain HTTP on the TLS port.
func redirect(r *http.Request) reply {
	status := http.StatusPermanentRedirect
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		status = http.StatusMovedPermanently
	}
	return reply{
		status: status, reason: http.StatusText(status), body: []byte(http.StatusText(status)),
		header: map[string]string{"Location": "https://" + r.Host + r.URL.RequestURI()},
	}
}

// Listener accepts TLS and plain connections on one port, as Proxmox does. The first byte determines which.
type Listener struct {
	net.Listener
	Config *tls.Config
}

// Accept returns a connection whose kind is determined by its first read.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &autoTLS{Conn: c, config: l.Config}, nil
}

const tlsHandshake = 0x16

type autoTLS struct {
	net.Conn
	config *tls.Config
	once   sync.Once
	mu     sync.Mutex
	inner  net.Conn
	plain  bool
}

// prefixed is a connection with the first byte already read.
type prefixed struct {
	net.Conn
	first []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.first) > 0 && len(b) > 0 {
		n := copy(b, p.first)
		p.first = p.first[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

func (c *autoTLS) decide() {
	c.once.Do(func() {
		first := make([]byte, 1)
		n, _ := c.Conn.Read(first) // the next read returns the error again
		under := &prefixed{Conn: c.Conn, first: first[:n]}
		c.mu.Lock()
		defer c.mu.Unlock()
		if n == 1 && first[0] != tlsHandshake {
			c.plain, c.inner = true, under
			return
		}
		c.inner = tls.Server(under, c.config)
	})
}

func (c *autoTLS) isPlain() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plain
}

func (c *autoTLS) current() net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inner
}

func (c *autoTLS) Read(b []byte) (int, error) {
	c.decide()
	return c.current().Read(b)
}

func (c *autoTLS) Write(b []byte) (int, error) {
	c.decide()
	return c.current().Write(b)
}

// Close closes the connection. After a handshake, it sends the TLS close notification.
func (c *autoTLS) Close() error {
	if inner := c.current(); inner != nil {
		return inner.Close()
	}
	return c.Conn.Close()
}
