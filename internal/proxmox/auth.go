// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
)

// credential identifies the credentials of a request, to distinguish a refusal of the
// current ones from a refusal of ones that were replaced meanwhile.
type credential struct{ value string }

// authorizer adds credentials to requests.
type authorizer interface {
	// authorize sets the headers and returns the credential that they contain.
	authorize(ctx context.Context, header http.Header) (credential, error)
	// renew is called when a credential was refused. It reports whether another one
	// is available.
	renew(ctx context.Context, refused credential) bool
}

// Secret is a text that formatters and encoders do not print.
type Secret string

const hidden = "(hidden)"

// String hides the secret from %v and %s.
func (Secret) String() string { return hidden }

// GoString hides the secret from %#v.
func (Secret) GoString() string { return hidden }

// MarshalText hides the secret from encoders, such as a structured log's.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// source is a text from the config, or from a file that may change: the kubelet
// replaces a mounted Secret in place when the token is rotated.
type source struct {
	inline string
	path   string
	last   atomic.Pointer[string]
}

// read returns the inline text or the current content of the file.
func (s *source) read() (string, error) {
	if s.path == "" {
		return s.inline, nil
	}
	content, err := os.ReadFile(s.path)
	value := strings.TrimSpace(string(content))
	if err == nil && value == "" {
		err = fmt.Errorf("%s is empty", s.path)
	}
	if err == nil {
		s.last.Store(&value)
		return value, nil
	}
	// The file may be missing during a rotation: use the old text until Proxmox
	// refuses it.
	if last := s.last.Load(); last != nil {
		return *last, nil
	}
	return "", err
}

// token authorizes with an API token.
type token struct {
	id, secret source
	log        logr.Logger
}

func newToken(cfg ClusterConfig, log logr.Logger) *token {
	return &token{
		id:     source{inline: cfg.TokenID, path: cfg.TokenIDFile},
		secret: source{inline: string(cfg.TokenSecret), path: cfg.TokenSecretFile},
		log:    log,
	}
}

func (t *token) authorize(_ context.Context, header http.Header) (credential, error) {
	value, err := t.read()
	if err != nil {
		return credential{}, &failure{kind: ErrUnauthorized, cause: fmt.Errorf("reading the API token: %w", err)}
	}
	header.Set("Authorization", "PVEAPIToken="+value)
	return credential{value}, nil
}

func (t *token) read() (string, error) {
	id, err := t.id.read()
	if err != nil {
		return "", err
	}
	secret, err := t.secret.read()
	if err != nil {
		return "", err
	}
	return id + "=" + secret, nil
}

func (t *token) renew(_ context.Context, refused credential) bool {
	value, err := t.read()
	if err != nil || value == refused.value {
		return false
	}
	t.log.Info("API token changed")
	return true
}
