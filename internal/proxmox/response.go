// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// response is an HTTP response whose body was read.
type response struct {
	method      string
	about       subject
	status      int
	reason      string // the reason phrase: the first line of Proxmox's message
	contentType string
	server      string
	body        []byte
}

func newResponse(req request, resp *http.Response, body []byte) response {
	_, reason, _ := strings.Cut(resp.Status, " ") // "500 VM is locked (backup)"
	return response{
		method: req.method, about: req.endpoint.about(), status: resp.StatusCode, reason: reason,
		contentType: strings.TrimSpace(resp.Header.Get("Content-Type")), server: resp.Header.Get("Server"), body: body,
	}
}

// serverName is the beginning of Proxmox's Server header. A reverse proxy may replace the
// header, so its absence means nothing.
const serverName = "pve-api-daemon/"

// foreignError returns an error if the response is not from Proxmox: from a load balancer
// without a Host behind it, or from another server.
func (r response) foreignError() error {
	if strings.HasPrefix(r.server, serverName) {
		return nil
	}
	if _, ok := r.envelope(); ok {
		return nil
	}
	switch {
	case slices.Contains(gatewayStatuses, r.status):
		return errors.New("a load balancer or reverse proxy responds with " + r.statusLine())
	case r.isSuccess():
		return &notProxmoxError{found: "an answer of type " + r.contentType}
	case strings.HasPrefix(r.contentType, "text/html"), r.status < http.StatusInternalServerError && !slices.Contains(refusals, r.status):
		return &notProxmoxError{found: r.statusLine()}
	}
	return nil
}

var (
	// gatewayStatuses are sent by a load balancer that got no response from a Host.
	gatewayStatuses = []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}
	// refusals are the statuses below 500 of calls that Proxmox refuses. It has no 404 and no
	// redirects.
	refusals = []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden}
)

func (r response) isSuccess() bool { return r.status >= 200 && r.status < 300 }

// isRefused reports whether the server did not carry out the request, whatever it is. A 408 or
// a 503 does not mean that: gateways also send them if a Host is slow or breaks off.
func (r response) isRefused() bool {
	return r.status >= 300 && r.status < 400 || slices.Contains([]int{
		http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusTooManyRequests,
	}, r.status)
}

// envelope returns the data of {"data":...}, which Proxmox sends for all calls that reach
// their handler, failed ones included.
func (r response) envelope() (json.RawMessage, bool) {
	var envelope map[string]json.RawMessage
	if json.Unmarshal(r.body, &envelope) != nil {
		return nil, false
	}
	data, ok := envelope["data"]
	return data, ok
}

// data returns the data of a successful response, {"data":...}, or the error of a
// failed one.
func (r response) data() (json.RawMessage, error) {
	if !r.isSuccess() {
		return nil, classify(r)
	}
	if data, ok := r.envelope(); ok {
		return data, nil
	}
	return nil, &failure{
		kind:  brokenKind(r.method, ErrUnreachable),
		cause: &notProxmoxError{found: "an answer of type " + r.contentType},
	}
}

func (r response) statusLine() string {
	return strings.TrimSpace(strconv.Itoa(r.status) + " " + oneLine(r.reason))
}

// message returns the message of a failed response and the errors by parameter: the
// body's message if it has one (complete, since 8.4), or else the reason phrase
// (the first line).
func (r response) message() (text string, parameters map[string]string) {
	var body struct {
		Message string                     `json:"message"`
		Errors  map[string]json.RawMessage `json:"errors"`
	}
	// Bodies of 401 and 595 are empty, others may come from a load balancer: a body
	// that is not JSON adds nothing to the reason phrase.
	if json.Unmarshal(r.body, &body) != nil {
		body.Message, body.Errors = "", nil
	}
	for name, raw := range body.Errors {
		if parameters == nil {
			parameters = make(map[string]string, len(body.Errors))
		}
		var value string
		if json.Unmarshal(raw, &value) != nil {
			value = string(raw)
		}
		parameters[name] = oneLine(value)
	}
	text = oneLine(body.Message)
	if text == "" {
		text = oneLine(r.reason)
	}
	if text == "" {
		text = "status " + strconv.Itoa(r.status)
	}
	return text, parameters
}

// notProxmoxError is the response of a server that is not a Proxmox VE API.
type notProxmoxError struct{ found string }

func (e *notProxmoxError) Error() string {
	return "this is not a Proxmox VE API, it responds with " + e.found
}
