// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"
)

// transport is what go-proxmox sends its requests through: it adds credentials,
// turns failed answers into errors and counts.
//
// go-proxmox looks at failed answers itself, but keeps too little: the status
// line alone of a 500, a single "not authorized" for 401 and 403.
type transport struct {
	next    http.RoundTripper
	auth    authorizer // nil for the login itself
	metrics *metrics
}

// RoundTrip answers with a success, or with an error of this package.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	begin := time.Now()
	code := codeNoAnswer
	defer func() { t.metrics.observe(req, code, time.Since(begin)) }()

	attempt, credential, err := t.authorized(req)
	if err != nil {
		return nil, err
	}
	resp, err := t.next.RoundTrip(attempt)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusUnauthorized && t.auth != nil && t.auth.renew(req.Context(), credential) {
		// 401 comes before anything was done, so any method may be repeated.
		if attempt, _, err = t.authorized(req); err != nil {
			return nil, err
		}
		if resp, err = t.next.RoundTrip(attempt); err != nil {
			return nil, err
		}
	}
	code = resp.StatusCode
	if err := judge(req, resp); err != nil {
		t.metrics.refusal(req, err)
		return nil, err
	}
	return resp, nil
}

// authorized copies the request, with credentials.
func (t *transport) authorized(req *http.Request) (*http.Request, credential, error) {
	attempt := req.Clone(req.Context())
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil, credential{}, err
		}
		attempt.Body = body
	}
	if t.auth == nil {
		return attempt, credential{}, nil
	}
	used, err := t.auth.authorize(req.Context(), attempt.Header)
	return attempt, used, err
}

// judge is nil for an answer that go-proxmox shall read.
func judge(req *http.Request, resp *http.Response) error {
	body, err := io.ReadAll(resp.Body)
	if err != nil { // buffered by failover: cannot be
		return &failure{kind: brokenKind(req.Method, ErrUnreachable), cause: err}
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		if !looksLikeProxmox(body) {
			return &failure{
				kind:  brokenKind(req.Method, ErrUnreachable),
				cause: &notProxmoxError{found: "an answer of type " + strings.TrimSpace(resp.Header.Get("Content-Type"))},
			}
		}
		return nil
	}
	return classify(answer{
		method: req.Method,
		about:  endpointOf(req.Context()).about(),
		status: resp.StatusCode,
		reason: reasonOf(resp),
		body:   body,
	})
}

// looksLikeProxmox tells whether a successful answer is {"data":...}.
func looksLikeProxmox(body []byte) bool {
	var answer map[string]json.RawMessage
	if json.Unmarshal(body, &answer) != nil {
		return false
	}
	_, ok := answer["data"]
	return ok
}

// reasonOf is the reason phrase: "500 VM is locked (backup)" without the code.
func reasonOf(resp *http.Response) string {
	_, reason, _ := strings.Cut(resp.Status, " ")
	return reason
}

// notProxmoxError says that whoever answers is no Proxmox VE API.
type notProxmoxError struct{ found string }

func (e *notProxmoxError) Error() string {
	return "this is not a Proxmox VE API, it answers with " + e.found
}
