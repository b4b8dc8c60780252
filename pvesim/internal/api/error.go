// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package api contains the requests, responses and errors of the simulated API.
package api

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

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
