// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/utils/clock"
)

// ticketLife is how long a ticket is used. Proxmox accepts it for two hours, and
// delays the 401 for an expired one by 3 s.
const ticketLife = time.Hour

// maxTicketLife is how long a ticket is used if Proxmox refuses a new one: it does so also if the
// realm of the user is unavailable for a moment.
const maxTicketLife = 110 * time.Minute

// refusedPasswordDelay is when a password that Proxmox refused is sent again. Tools such as
// fail2ban block the address of a client that sends it with every request.
const refusedPasswordDelay = time.Minute

const loginPath = "/access/ticket"

// ticket authorizes with a login.
type ticket struct {
	login    *caller
	username string
	password source
	clock    clock.PassiveClock

	// lock guards the fields below. It is a channel of capacity one, so a caller
	// whose context ends stops waiting for the login in progress.
	lock     chan struct{}
	session  session
	obtained time.Time
	refused  refusal
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

func newTicket(cfg ClusterConfig, login *caller, clk clock.PassiveClock) *ticket {
	return &ticket{
		login:    login,
		username: cfg.Username,
		password: source{inline: string(cfg.Password), path: cfg.passwordFile},
		clock:    clk,
		lock:     make(chan struct{}, 1),
	}
}

func (t *ticket) authorize(ctx context.Context, header http.Header) (credential, error) {
	select {
	case t.lock <- struct{}{}:
		defer func() { <-t.lock }()
	case <-ctx.Done():
		return credential{}, &failure{kind: ErrNoTime, cause: fmt.Errorf("waiting for the login: %w", ctx.Err())}
	}
	if age := t.clock.Since(t.obtained); t.session.Ticket == "" || age > ticketLife {
		if err := t.logIn(ctx); err != nil && (t.session.Ticket == "" || age > maxTicketLife) {
			return credential{}, err
		}
	}
	header.Set("Cookie", "PVEAuthCookie="+t.session.Ticket)
	header.Set("CSRFPreventionToken", t.session.CSRFPreventionToken)
	return credential{t.session.Ticket}, nil
}

func (t *ticket) logIn(ctx context.Context) error {
	t.password.invalidate()
	password, err := t.password.read()
	if err != nil {
		return &failure{kind: ErrUnauthorized, cause: fmt.Errorf("reading the password: %w", err)}
	}
	if t.refused.err != nil && t.refused.password == password && t.clock.Since(t.refused.at) < refusedPasswordDelay {
		return t.refused.err
	}
	var obtained session
	if err := t.login.post(ctx, at(loginPath), parameters{"username": t.username, "password": password}, &obtained); err != nil {
		err = loginError(err)
		if errors.Is(err, ErrUnauthorized) {
			t.refused = refusal{password: password, err: err, at: t.clock.Now()}
		}
		return err
	}
	t.refused = refusal{}
	if obtained.Ticket == "" || strings.HasPrefix(obtained.Ticket, "PVE:!tfa!") {
		return &failure{kind: ErrUnauthorized, text: "the login requires a second factor: use an API token, or a user without one"}
	}
	t.session, t.obtained = obtained, t.clock.Now()
	return nil
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
func (t *ticket) renew(ctx context.Context, refused credential) bool {
	select {
	case t.lock <- struct{}{}:
		defer func() { <-t.lock }()
	case <-ctx.Done():
		return false
	}
	if t.session.Ticket == refused.value {
		t.session = session{}
	}
	return true
}
