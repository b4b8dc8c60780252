// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
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

	// slot is held during a login, and guards the two fields below. It is a channel of
	// capacity one, so a caller whose context ends stops waiting for the login in progress.
	slot    chan struct{}
	refused refusal
	failed  time.Time // the last renewal

	mu       sync.Mutex
	session  session
	obtained time.Time // zero if there is no session
}

// refusal is the response to a login with a wrong password.
type refusal struct {
	password string
	err      error
	at       time.Time
}

type session struct {
	Ticket              string `json:"ticket"`
	CSRFPreventionToken string `json:"CSRFPreventionToken"`
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
func (t *ticket) current(ctx context.Context) (session, error) {
	valid, age := t.stored()
	switch {
	case age <= ticketLife:
		return valid, nil
	case age <= maxTicketLife:
		return t.renewed(ctx, valid), nil
	}
	select {
	case t.slot <- struct{}{}:
		defer func() { <-t.slot }()
	case <-ctx.Done():
		return session{}, &failure{kind: ErrNoTime, cause: fmt.Errorf("waiting for the login: %w", ctx.Err())}
	}
	if valid, age := t.stored(); age <= maxTicketLife {
		return valid, nil // of the login that it waited for
	}
	return t.logIn(ctx)
}

// renewed returns a new session, or the valid one if another request renews it, or if the login
// fails or takes too long.
func (t *ticket) renewed(ctx context.Context, valid session) session {
	select {
	case t.slot <- struct{}{}:
		defer func() { <-t.slot }()
	default:
		return valid
	}
	if stored, age := t.stored(); age <= ticketLife {
		return stored
	}
	if time.Since(t.failed) < loginDelay {
		return valid
	}
	timeout := renewalTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)/2) // the rest is for the request
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	obtained, err := t.logIn(ctx)
	if err != nil {
		t.failed = time.Now()
		return valid
	}
	return obtained
}

// stored returns the session and its age.
func (t *ticket) stored() (session, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session, time.Since(t.obtained)
}

func (t *ticket) store(s session, obtained time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.session, t.obtained = s, obtained
}

func (t *ticket) logIn(ctx context.Context) (session, error) {
	password, err := t.password.read()
	if err != nil {
		return session{}, &failure{kind: ErrUnauthorized, cause: fmt.Errorf("reading the password: %w", err)}
	}
	if t.refused.err != nil && t.refused.password == password && time.Since(t.refused.at) < loginDelay {
		return session{}, t.refused.err
	}
	var obtained session
	if err := t.login.post(ctx, at(loginPath), parameters{"username": t.username, "password": password}, &obtained); err != nil {
		err = loginError(err)
		if errors.Is(err, ErrUnauthorized) {
			t.refused = refusal{password: password, err: err, at: time.Now()}
		}
		return session{}, err
	}
	t.refused = refusal{}
	if obtained.Ticket == "" || strings.HasPrefix(obtained.Ticket, "PVE:!tfa!") {
		return session{}, &failure{kind: ErrUnauthorized, text: "the login requires a second factor: use an API token, or a user without one"}
	}
	t.store(obtained, time.Now())
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
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.session.Ticket == refused.value {
		t.session, t.obtained = session{}, time.Time{}
	}
	return true
}
