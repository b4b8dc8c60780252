// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// ticketLife is how long a ticket is used. Proxmox accepts it for two hours, and
// delays the 401 for an expired one by 3 s.
const ticketLife = time.Hour

// maxTicketLife is how long a ticket is used if it cannot be renewed: Proxmox refuses a new one,
// or does not respond to the login, also if the realm of the user is unavailable for a moment.
const maxTicketLife = 110 * time.Minute

// loginDelay is when a failed renewal is repeated, and when a password that Proxmox refused is sent
// again. Tools such as fail2ban block the address of a client that sends it with every request.
const loginDelay = time.Minute

// renewalTimeout limits the renewal of a ticket that is still valid.
const renewalTimeout = 10 * time.Second

const loginPath = "/access/ticket"

// ticket authorizes with a login.
type ticket struct {
	login    *caller
	username string
	password source

	// slot is held during a login, and guards the failure below. It is a channel of
	// capacity one, so a caller whose context ends stops waiting for the login in progress.
	slot   chan struct{}
	failed loginFailure

	session atomic.Pointer[session]
}

// loginFailure is the last login if it failed.
type loginFailure struct {
	password string
	err      error
	at       time.Time
}

// isRecent reports whether the login failed within the last loginDelay.
func (f loginFailure) isRecent() bool { return f.err != nil && time.Since(f.at) < loginDelay }

type session struct {
	Ticket              string `json:"ticket"`
	CSRFPreventionToken string `json:"CSRFPreventionToken"`

	obtained time.Time
}

// age returns the time since the login; for nil it is longer than any ticket is valid.
func (s *session) age() time.Duration {
	if s == nil {
		return math.MaxInt64
	}
	return time.Since(s.obtained)
}

func newTicket(cfg ClusterConfig, login *caller) *ticket {
	return &ticket{
		login:    login,
		username: cfg.Username,
		password: source{inline: string(cfg.Password), path: cfg.passwordFile},
		slot:     make(chan struct{}, 1),
	}
}

func (t *ticket) authorize(ctx context.Context, header http.Header) (credential, error) {
	current, err := t.current(ctx)
	if err != nil {
		return credential{}, err
	}
	header.Set("Cookie", "PVEAuthCookie="+current.Ticket)
	header.Set("CSRFPreventionToken", current.CSRFPreventionToken)
	return credential{current.Ticket}, nil
}

// current returns a valid session. It renews one that is older than ticketLife, and waits for a
// login if there is none.
func (t *ticket) current(ctx context.Context) (*session, error) {
	valid := t.session.Load()
	switch age := valid.age(); {
	case age <= ticketLife:
		return valid, nil
	case age <= maxTicketLife:
		return t.renewed(ctx, valid), nil
	}
	select {
	case t.slot <- struct{}{}:
		defer func() { <-t.slot }()
	case <-ctx.Done():
		return nil, &failure{kind: ErrNoTime, cause: fmt.Errorf("waiting for the login: %w", ctx.Err())}
	}
	if valid := t.session.Load(); valid.age() <= maxTicketLife {
		return valid, nil // of the login that it waited for
	}
	return t.logIn(ctx)
}

// renewed returns a new session, or the valid one if another request renews it, or if the login
// fails or takes too long.
func (t *ticket) renewed(ctx context.Context, valid *session) *session {
	select {
	case t.slot <- struct{}{}:
		defer func() { <-t.slot }()
	default:
		return valid
	}
	if stored := t.session.Load(); stored.age() <= ticketLife {
		return stored
	}
	if t.failed.isRecent() {
		return valid
	}
	timeout := renewalTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)/2) // the rest is for the request
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if obtained, err := t.logIn(ctx); err == nil {
		return obtained
	}
	return valid
}

// logIn obtains a session. The caller holds the slot.
func (t *ticket) logIn(ctx context.Context) (*session, error) {
	password, err := t.password.read()
	if err != nil {
		return nil, &failure{kind: ErrUnauthorized, cause: fmt.Errorf("reading the password: %w", err)}
	}
	if t.failed.isRecent() && t.failed.password == password && errors.Is(t.failed.err, ErrUnauthorized) {
		return nil, t.failed.err
	}
	obtained := &session{}
	err = t.login.post(ctx, at(loginPath), parameters{"username": t.username, "password": password}, obtained)
	if err != nil {
		t.failed = loginFailure{password, loginError(err), time.Now()}
		return nil, t.failed.err
	}
	t.failed = loginFailure{}
	if obtained.Ticket == "" || strings.HasPrefix(obtained.Ticket, "PVE:!tfa!") {
		return nil, &failure{kind: ErrUnauthorized, text: "the login requires a second factor: use an API token, or a user without one"}
	}
	obtained.obtained = time.Now()
	t.session.Store(obtained)
	return obtained, nil
}

// loginError returns the error of a call whose login failed. Regardless of the
// login's outcome, the call itself was not made.
func loginError(err error) error {
	failed, ok := errors.AsType[*failure](err)
	switch {
	case !ok:
		return &failure{kind: ErrUnauthorized, text: "the login failed: " + oneLine(err.Error())}
	case errors.Is(failed.kind, ErrUnauthorized):
		return failed
	}
	kind := ErrUnreachable
	if errors.Is(failed.kind, ErrNoTime) {
		kind = ErrNoTime
	}
	return &failure{kind: kind, text: "the login failed: " + failed.Error(), cause: failed.cause}
}

// renew drops the refused ticket, so the next authorize logs in again.
func (t *ticket) renew(_ context.Context, refused credential) bool {
	if current := t.session.Load(); current != nil && current.Ticket == refused.value {
		t.session.CompareAndSwap(current, nil)
	}
	return true
}
