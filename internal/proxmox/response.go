// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"encoding/json"
	"net/http"
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
	body        []byte
}

func newResponse(req request, resp *http.Response, body []byte) response {
	_, reason, _ := strings.Cut(resp.Status, " ") // "500 VM is locked (backup)"
	return response{
		method: req.method, about: req.endpoint.about(), status: resp.StatusCode, reason: reason,
		contentType: strings.TrimSpace(resp.Header.Get("Content-Type")), body: body,
	}
}

// data returns the data of a successful response, {"data":...}, or the error of a
// failed one.
func (r response) data() (json.RawMessage, error) {
	if r.status < 200 || r.status >= 300 {
		return nil, classify(r)
	}
	var envelope map[string]json.RawMessage
	if json.Unmarshal(r.body, &envelope) == nil {
		if data, ok := envelope["data"]; ok {
			return data, nil
		}
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
