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

	goproxmox "github.com/luthermonson/go-proxmox"
	"k8s.io/utils/clock"
)

// ticketLife is how long a ticket is used; Proxmox accepts it for two hours.
const ticketLife = time.Hour

// ticket authorizes with a login.
//
// go-proxmox can log in by itself, but it notices an old ticket by a 401, which
// Proxmox delays by 3 s, and shares its session between goroutines without a
// lock. So its login call serves here, and the session is ours.
type ticket struct {
	login    *goproxmox.Client
	username string
	password source
	clock    clock.PassiveClock

	// turn has room for one: whoever logs in. It guards the fields below.
	turn     chan struct{}
	session  goproxmox.Session
	obtained time.Time
}

func newTicket(cfg ClusterConfig, login *goproxmox.Client, clk clock.PassiveClock) *ticket {
	return &ticket{
		login:    login,
		username: cfg.Username,
		password: source{inline: string(cfg.Password), path: cfg.passwordFile},
		clock:    clk,
		turn:     make(chan struct{}, 1),
	}
}

func (t *ticket) authorize(ctx context.Context, header http.Header) (credential, error) {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return credential{}, &failure{kind: ErrUnreachable, cause: ctx.Err()}
	}
	if t.session.Ticket == "" || t.clock.Since(t.obtained) > ticketLife {
		if err := t.logIn(ctx); err != nil {
			return credential{}, err
		}
	}
	header.Set("Cookie", "PVEAuthCookie="+t.session.Ticket)
	header.Set("CSRFPreventionToken", t.session.CSRFPreventionToken)
	return credential{t.session.Ticket}, nil
}

func (t *ticket) logIn(ctx context.Context) error {
	t.password.forget()
	password, err := t.password.read()
	if err != nil {
		return &failure{kind: ErrUnauthorized, cause: fmt.Errorf("reading the password, %w", err)}
	}
	var session goproxmox.Session
	e := at("/access/ticket")
	credentials := goproxmox.Credentials{Username: t.username, Password: password}
	if err := t.login.Post(withEndpoint(ctx, e), e.String(), &credentials, &session); err != nil {
		return loginError(err)
	}
	if session.Ticket == "" || strings.HasPrefix(session.Ticket, "PVE:!tfa!") {
		return &failure{kind: ErrUnauthorized, text: "the login asks for a second factor: use an API token, or a user without one"}
	}
	t.session, t.obtained = session, t.clock.Now()
	return nil
}

// loginError is the error of a call that could not even log in: whatever
// became of the login, the call was not made.
func loginError(err error) error {
	var failed *failure
	if !errors.As(err, &failed) {
		return &failure{kind: ErrUnauthorized, text: "the login failed: " + oneLine(err.Error())}
	}
	if errors.Is(failed.kind, ErrUnauthorized) {
		return failed
	}
	return &failure{kind: ErrUnreachable, text: "the login failed: " + failed.Error(), cause: failed.cause}
}

// renew drops the refused ticket: the next authorize logs in again.
func (t *ticket) renew(ctx context.Context, refused credential) bool {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return false
	}
	if t.session.Ticket == refused.value {
		t.session = goproxmox.Session{}
	}
	return true
}
