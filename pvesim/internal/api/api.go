// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package api contains the requests, responses and errors of the simulated API.
package api

import (
	"context"
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// Request is an API call after authentication.
type Request struct {
	Verb   string
	Path   string // below /api2/json, decoded
	Who    access.Identity
	Params schema.Params
	Upload *Upload
	// Serving is the host that received the request; empty means the first one that is up.
	Serving string

	Method *schema.Method
	Host   string // the host named in the path
	VMID   int
}

// Upload is the file part of a multipart request.
type Upload struct {
	Name string
	Data []byte
	Temp string
	// Cut means that the server closed the connection and removed the temporary file before a task could read it.
	Cut bool
}

// MergePath adds the values of the path to the parameters. It fails if a parameter has another value already.
func (r *Request) MergePath(values map[string]string) error {
	if r.Params.Values == nil {
		r.Params.Values = map[string]string{}
	}
	for name, v := range values {
		if old, dup := r.Params.Values[name]; dup && old != v {
			return BadParam(name, "duplicate parameter (already defined in URI) with conflicting values!")
		}
		r.Params.Values[name] = v
	}
	return nil
}

var placeholder = regexp.MustCompile(`\{(\w+)\}`)

// Fill replaces the placeholders of a template, "{node}", with parameters.
func (r *Request) Fill(template string) string {
	return placeholder.ReplaceAllStringFunc(template, func(p string) string {
		return r.Params.Values[strings.Trim(p, "{}")]
	})
}

// Value returns a parameter and whether it was given.
func (r *Request) Value(name string) (string, bool) {
	v, ok := r.Params.Values[name]
	return v, ok
}

// Bool reports whether a boolean parameter is set.
func (r *Request) Bool(name string) bool { return r.Params.Values[name] == "1" }

// Int returns an integer parameter, or def if it was not given.
func (r *Request) Int(name string, def int) int {
	n, err := strconv.Atoi(r.Params.Values[name])
	if err != nil {
		return def
	}
	return n
}

// Response is the result of a handler.
type Response struct {
	Data  any
	Total *int // length of the whole list, where Proxmox reports it
}

// Handler serves one API method.
type Handler func(ctx context.Context, r *Request) (Response, error)

// Row is an object in a response.
type Row = map[string]any

// NewRow returns a row with the given fields.
func NewRow(m map[string]string) Row {
	out := Row{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// SetNonEmpty sets a field of a row unless the value is empty.
func SetNonEmpty(row Row, key, value string) {
	if value != "" {
		row[key] = value
	}
}

// BoolInt returns a boolean as Proxmox sends it: 0 or 1.
func BoolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Digest returns the digest of sections of a config file. Empty sections do not count.
func Digest(v ...any) string {
	text := ""
	for _, x := range v {
		if t := fmt.Sprint(x); t != "map[]" && t != "[]" {
			text += t
		}
	}
	return SHA1(text)
}

// SHA1 returns the checksum of a text in hexadecimal.
func SHA1(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

// ParamsExcept returns the parameters of a request without the given ones.
func ParamsExcept(r *Request, names ...string) map[string]string {
	out := maps.Clone(r.Params.Values)
	maps.DeleteFunc(out, func(name, _ string) bool { return slices.Contains(names, name) })
	return out
}

// DeleteListed deletes the keys in the parameter "delete" from the fields of an object.
func DeleteListed[V any](r *Request, fields map[string]V) {
	for _, key := range schema.SplitList(r.Params.Values["delete"]) {
		delete(fields, key)
	}
}

// Index returns a handler that lists the subdirectories of a path.
func Index(key string, names ...string) Handler {
	rows := make([]Row, 0, len(names))
	for _, n := range names {
		rows = append(rows, Row{key: n})
	}
	return Static(rows)
}

// Static returns a handler that always responds with the same data.
func Static(data any) Handler {
	return func(context.Context, *Request) (Response, error) { return Response{Data: data}, nil }
}

// Error is an error response of Proxmox.
type Error struct {
	Status  int
	Message string
	Errors  map[string]string
	Bare    bool // the response has no body
	NoBreak bool // the message has no trailing line break
}

// Error returns the text of the exception in Perl. In task logs, status 403 and 400 include the status and the details.
func (e *Error) Error() string {
	switch e.Status {
	case http.StatusForbidden:
		return "403 " + e.Message
	case http.StatusBadRequest:
		text := "400 " + e.Message
		for _, k := range slices.Sorted(maps.Keys(e.Errors)) {
			text += "\n" + k + ": " + e.Errors[k]
		}
		return text
	}
	return e.Message
}

// Reason returns the first line of the message, which is the reason phrase of the status line.
func (e *Error) Reason() string {
	first, _, _ := strings.Cut(e.Message, "\n")
	return first
}

// Failf returns an error with status 500, as "die" in a handler of Proxmox does.
func Failf(format string, args ...any) error {
	return &Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf(format, args...)}
}

// ParamError returns an error with status 400 and a message for each parameter.
func ParamError(errs map[string]string) error {
	return &Error{Status: http.StatusBadRequest, Message: "Parameter verification failed.", Errors: errs}
}

// BadParam returns an error with status 400 for one parameter.
func BadParam(name, format string, args ...any) error {
	return ParamError(map[string]string{name: fmt.Sprintf(format, args...)})
}

// Denied returns an error with status 403. The detail is optional.
func Denied(detail string) error {
	if detail == "" {
		return &Error{Status: http.StatusForbidden, Message: "Permission check failed"}
	}
	return &Error{Status: http.StatusForbidden, Message: "Permission check failed (" + detail + ")"}
}
