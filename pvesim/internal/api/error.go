// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Error is a refusal in Proxmox's form.
type Error struct {
	Status  int
	Message string
	Errors  map[string]string
	Bare    bool // no body at all
	NoBreak bool // the message carries no line break at its end
}

// Error is the text that Perl makes of the exception: inside a task, refusals carry their status and details.
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

// Reason is the first line of the message: it becomes the status line's reason phrase.
func (e *Error) Reason() string {
	first, _, _ := strings.Cut(e.Message, "\n")
	return first
}

// Failf is a "die" in a handler: status 500.
func Failf(format string, args ...any) error {
	return &Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf(format, args...)}
}

// ParamError refuses parameters by name.
func ParamError(errs map[string]string) error {
	return &Error{Status: http.StatusBadRequest, Message: "Parameter verification failed.", Errors: errs}
}

func BadParam(name, format string, args ...any) error {
	return ParamError(map[string]string{name: fmt.Sprintf(format, args...)})
}

// Denied is a failed permission check. Without a detail the text is bare.
func Denied(detail string) error {
	if detail == "" {
		return &Error{Status: http.StatusForbidden, Message: "Permission check failed"}
	}
	return &Error{Status: http.StatusForbidden, Message: "Permission check failed (" + detail + ")"}
}
