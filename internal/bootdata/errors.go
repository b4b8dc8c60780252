// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// TemplateError says where a template is wrong and why, without any value.
type TemplateError struct {
	// File is the key of the templates Secret: user-data, meta-data,
	// network-config or vendor-data.
	File string
	// Line and Column count in the template as the user wrote it, from 1; 0 when
	// the fault has no place.
	Line, Column int
	Reason       string
}

// Error names the key, the place and the reason.
func (e *TemplateError) Error() string {
	switch {
	case e.Line == 0:
		return fmt.Sprintf("%s: %s", e.File, e.Reason)
	case e.Column == 0:
		return fmt.Sprintf("%s: line %d: %s", e.File, e.Line, e.Reason)
	default:
		return fmt.Sprintf("%s: line %d, column %d: %s", e.File, e.Line, e.Column, e.Reason)
	}
}

var (
	templatePlace = regexp.MustCompile(`(?s)^template: [^:]*:(\d+)(?::(\d+))?: (.*)$`)
	missingKey    = regexp.MustCompile(`map has no entry for key ("(?:[^"\\]|\\.)*")$`)
	missingField  = regexp.MustCompile(`can't evaluate field (\w+) in type \*?(?:bootdata\.)?([\w.]+)$`)
	callFailed    = regexp.MustCompile(`(?s): error calling (\w+): (.*)$`)
	wrongConstant = regexp.MustCompile(`: (expected \w+); found `)
	// harmless are the remaining complaints of text/template that consist of
	// names, types and numbers only.
	harmless = regexp.MustCompile(`((?:wrong type for value; expected|wrong number of args for|invalid value; expected|` +
		`nil pointer evaluating|can't give argument to non-function|exceeded maximum template depth|` +
		`template "[^"]*" not defined)[^"<>]*)$`)
)

// parseFailure explains a template that does not parse. Its text is the parser's
// own: no value has been put in yet.
func parseFailure(file string, err error) error {
	out := &TemplateError{File: file, Reason: strings.TrimPrefix(err.Error(), "template: "+file+": ")}
	out.locate(err)
	return out
}

// executionFailure explains a template that does not execute. text/template
// quotes operands and values in some messages ("range can't iterate over
// s3cret"), so only messages known to be free of them are passed on.
func executionFailure(file string, data Data, err error) error {
	out := &TemplateError{File: file}
	text := out.locate(err)
	switch {
	case strings.Contains(text, errTooManySteps.Error()):
		out.Reason = errTooManySteps.Error()
	case missingKey.MatchString(text):
		out.Reason = "missing key " + missingKey.FindStringSubmatch(text)[1]
		if strings.Contains(text, ".Values.") {
			out.Reason += "; " + data.valueKeys()
		}
	case missingField.MatchString(text):
		match := missingField.FindStringSubmatch(text)
		out.Reason = fmt.Sprintf("%s has no field %q", match[2], match[1])
	case callFailed.MatchString(text):
		match := callFailed.FindStringSubmatch(text)
		out.Reason = fmt.Sprintf("%s: %s", match[1], match[2])
	case harmless.MatchString(text):
		out.Reason = harmless.FindStringSubmatch(text)[1]
	case wrongConstant.MatchString(text):
		out.Reason = "wrong type of argument: " + wrongConstant.FindStringSubmatch(text)[1]
	case strings.Contains(text, "range can't iterate over"):
		out.Reason = "range needs a list, a map or a number"
	default:
		out.Reason = "the expression cannot be evaluated"
	}
	return out
}

// locate takes the place out of a text/template error and returns the rest.
func (e *TemplateError) locate(err error) string {
	match := templatePlace.FindStringSubmatch(err.Error())
	if match == nil {
		return err.Error()
	}
	// Both are digits by the expression; a number too large to be one is no place.
	e.Line, _ = strconv.Atoi(match[1])
	e.Column, _ = strconv.Atoi(match[2])
	e.Reason = match[3]
	return match[3]
}
