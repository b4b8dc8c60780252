// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// AuthDelay is how long the answer to a failed login takes.
const AuthDelay = 3 * time.Second

// Errors of a failed login, with the texts of Proxmox.
var (
	ErrNoTicket = errors.New("No ticket")                              //nolint:staticcheck // Proxmox's own text
	ErrAuth     = errors.New("Authentication failed!")                 //nolint:revive,staticcheck // Proxmox's own text
	ErrCSRF     = errors.New("Permission denied - invalid csrf token") //nolint:staticcheck // Proxmox's own text
	ErrPassword = errors.New("authentication failure")
)

const (
	ticketLife  = 2 * time.Hour
	ticketGrace = 5 * time.Minute
)

// Signer issues and verifies tickets.
type Signer struct{ key []byte }

// NewSigner returns a signer with a random key.
func NewSigner() *Signer {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return &Signer{key: key}
}

func (s *Signer) sign(text string) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(text))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Ticket issues a login ticket and its CSRF token.
func (s *Signer) Ticket(user string, now time.Time) (ticket, csrf string) {
	plain := fmt.Sprintf("PVE:%s:%08X", user, now.Unix())
	stamp := fmt.Sprintf("%08X", now.Unix())
	return plain + "::" + s.sign(plain), stamp + ":" + s.sign(stamp+":"+user)
}

// User verifies a ticket and returns its user. It returns ErrAuth if the ticket is not valid or has expired.
func (s *Signer) User(ticket string, now time.Time) (string, error) {
	plain, sig, ok := strings.Cut(ticket, "::")
	parts := strings.Split(plain, ":")
	if !ok || len(parts) != 3 || parts[0] != "PVE" || !equal(sig, s.sign(plain)) || !isFresh(parts[2], now) {
		return "", ErrAuth
	}
	return parts[1], nil
}

// CheckCSRF verifies the token that each writing call with a ticket needs. It returns ErrCSRF if the token is not
// valid.
func (s *Signer) CheckCSRF(token, user string, now time.Time) error {
	stamp, sig, ok := strings.Cut(token, ":")
	if !ok || !equal(sig, s.sign(stamp+":"+user)) || !isFresh(stamp, now) {
		return ErrCSRF
	}
	return nil
}

func isFresh(stamp string, now time.Time) bool {
	secs, err := strconv.ParseInt(stamp, 16, 64)
	if err != nil {
		return false
	}
	age := now.Sub(time.Unix(secs, 0))
	return age > -ticketGrace && age < ticketLife
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// CheckToken verifies "user@realm!name=secret" and returns the identity. It returns ErrAuth if it is not valid.
func (s *Store) CheckToken(credential string, now time.Time) (Identity, error) {
	name, secret, ok := strings.Cut(credential, "=")
	userid, tokenid, isToken := strings.Cut(name, "!")
	if !ok || !isToken {
		return Identity{}, ErrAuth
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	u := s.users[userid]
	if u == nil || !u.active(now) {
		return Identity{}, ErrAuth
	}
	t := u.Tokens[tokenid]
	if t == nil || !equal(secret, t.Secret) || (t.Expire != 0 && t.Expire <= now.Unix()) {
		return Identity{}, ErrAuth
	}
	return Identity{User: userid, Token: tokenid}, nil
}

// CheckPassword verifies a login with a password. It returns ErrPassword if it is not valid.
func (s *Store) CheckPassword(userid, password string, now time.Time) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	u := s.users[userid]
	if u == nil || !u.active(now) || u.Password == "" || !equal(password, u.Password) {
		return ErrPassword
	}
	return nil
}

// IsActive reports whether a user exists, is enabled and has not expired.
func (s *Store) IsActive(userid string, now time.Time) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	u := s.users[userid]
	return u != nil && u.active(now)
}

func (u *User) active(now time.Time) bool {
	return !u.Disabled && (u.Expire == 0 || u.Expire > now.Unix())
}
