// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// caller sends API calls to one Cluster. It adds credentials, decodes responses,
// turns failed responses into errors of this package, and records metrics.
type caller struct {
	hosts   *failover
	auth    authorizer // nil for the login itself
	metrics *metrics
}

// request is one API call.
type request struct {
	method      string
	endpoint    endpoint
	contentType string
	body        []byte
	// verify, if set, decides whether the response can be used or the next URL is tried.
	// It can make further calls to the same URL. Such a request is a poll.
	verify func(resp response, get func(endpoint) (response, error)) error
	// recheck, if set, replaces the error of a refused request, for example after a call
	// that shows what it means.
	recheck func(context.Context, error) error
}

// isRepeatable reports whether a request may be sent again if its outcome is unknown.
func (r request) isRepeatable() bool {
	return r.method == http.MethodGet || r.endpoint.template == loginPath
}

// host returns the Host that the Host which receives the request forwards it to, or "" if it
// does not forward it.
func (r request) host() string {
	if !strings.HasPrefix(r.endpoint.template, "/nodes/{node}/") {
		return ""
	}
	return strings.Split(r.endpoint.path, "/")[2]
}

// isForwarded reports whether the Host that receives the request may wait for another server:
// for the Host of the path, or for the realm of a login.
func (r request) isForwarded() bool {
	return r.host() != "" || r.endpoint.template == loginPath
}

// isPoll reports whether the request checks URLs that failed.
func (r request) isPoll() bool { return r.verify != nil }

// parameters is the body of a write. All values are sent as text: Proxmox accepts
// "1" for a number and for a boolean.
type parameters map[string]string

func newRequest(method string, e endpoint, body parameters) request {
	if len(body) == 0 {
		return request{method: method, endpoint: e} // Proxmox refuses an empty JSON body
	}
	encoded, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings always marshal
	}
	return request{method: method, endpoint: e, contentType: "application/json", body: encoded}
}

func (c *caller) get(ctx context.Context, e endpoint, out any) error {
	return c.call(ctx, newRequest(http.MethodGet, e, nil), out)
}

func (c *caller) post(ctx context.Context, e endpoint, body parameters, out any) error {
	return c.call(ctx, newRequest(http.MethodPost, e, body), out)
}

func (c *caller) put(ctx context.Context, e endpoint, body parameters) error {
	return c.call(ctx, newRequest(http.MethodPut, e, body), nil)
}

func (c *caller) remove(ctx context.Context, e endpoint, out any) error {
	return c.call(ctx, newRequest(http.MethodDelete, e, nil), out)
}

// startTask makes a call that starts a task and returns the task's UPID. The format
// describes the call in errors.
func (c *caller) startTask(ctx context.Context, req request, format string, args ...any) (UPID, error) {
	var upid UPID
	err := c.call(ctx, req, &upid)
	if err == nil && !upid.Valid() {
		err = &failure{kind: ErrUnknownOutcome, text: fmt.Sprintf("Proxmox returned %q instead of a task", string(upid))}
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
	}
	return upid, nil
}

// call makes an API call and decodes the response's data into out, unless out is nil.
func (c *caller) call(ctx context.Context, req request, out any) error {
	if missing := req.endpoint.missing; missing != "" {
		return &InvalidError{Parameters: map[string]string{missing: "empty"}, Message: "the path parameter " + missing + " is empty"}
	}
	data, err := c.send(ctx, req)
	if err != nil || out == nil {
		return err
	}
	return decode(req.method, data, out)
}

func decode(method string, data json.RawMessage, out any) error {
	if err := json.Unmarshal(data, &out); err != nil {
		return &failure{kind: brokenKind(method, ErrFailed), text: "decoding the response: " + oneLine(err.Error())}
	}
	return nil
}

func (c *caller) send(ctx context.Context, req request) (json.RawMessage, error) {
	begin := time.Now()
	resp, err := c.sendRenewed(ctx, req)
	took := time.Since(begin)
	if err != nil {
		c.metrics.observe(req, resp, err, took)
		return nil, err
	}
	data, err := resp.data()
	if err != nil && req.recheck != nil {
		err = req.recheck(ctx, err)
	}
	c.metrics.observe(req, resp, err, took)
	c.metrics.refusal(req, err)
	return data, err
}

// sendRenewed sends the request again with new credentials if they were refused.
func (c *caller) sendRenewed(ctx context.Context, req request) (response, error) {
	resp, used, err := c.sendAuthorized(ctx, req)
	if err == nil && resp.status == http.StatusUnauthorized && c.auth != nil && c.auth.renew(ctx, used) {
		// Proxmox sends 401 before it takes any action, so any method may be repeated.
		resp, _, err = c.sendAuthorized(ctx, req)
	}
	return resp, err
}

func (c *caller) sendAuthorized(ctx context.Context, req request) (response, credential, error) {
	header := http.Header{"User-Agent": {userAgent}, "Accept": {"application/json"}}
	if req.contentType != "" {
		header.Set("Content-Type", req.contentType)
	}
	var used credential
	if c.auth != nil {
		var err error
		if used, err = c.auth.authorize(ctx, header); err != nil {
			return response{}, credential{}, err
		}
	}
	resp, err := c.hosts.send(ctx, req, header)
	return resp, used, err
}
