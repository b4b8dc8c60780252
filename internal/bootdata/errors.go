// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// TemplateError is an error in a boot data template, with its position. It contains no
// value.
type TemplateError struct {
	// File is the key of the templates Secret: user-data, meta-data,
	// network-config or vendor-data.
	File string
	// Line and Column are the position in the template source, from 1; 0 if unknown.
	Line, Column int
	Reason       string
}

// Error returns the key, the position and the reason.
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
	templatePosition = regexp.MustCompile(`(?s)^template: [^:]*:(\d+)(?::(\d+))?: (.*)$`)
	missingKey       = regexp.MustCompile(`map has no entry for key ("(?:[^"\\]|\\.)*")$`)
	missingField     = regexp.MustCompile(`can't evaluate field (\w+) in type \*?(?:bootdata\.)?([\w.]+)$`)
	callFailed       = regexp.MustCompile(`(?s): error calling (\w+): (.*)$`)
	wrongConstant    = regexp.MustCompile(`: (expected \w+); found `)
	// valueFree matches the other messages of text/template that contain only names,
	// types and numbers.
	valueFree = regexp.MustCompile(`((?:wrong type for value; expected|wrong number of args for|invalid value; expected|` +
		`nil pointer evaluating|can't give argument to non-function|exceeded maximum template depth|` +
		`template "[^"]*" not defined)[^"<>]*)$`)
)

// newParseError describes a template that does not parse. The parser's message is safe
// because no value is inserted yet.
func newParseError(file string, err error) error {
	out := &TemplateError{File: file, Reason: strings.TrimPrefix(err.Error(), "template: "+file+": ")}
	out.setPosition(err)
	return out
}

// newExecutionError describes a template that fails to execute. text/template quotes
// values in some messages ("range can't iterate over s3cret"), so only messages that are
// known to contain none are returned.
func newExecutionError(file string, data Data, err error) error {
	out := &TemplateError{File: file}
	text := out.setPosition(err)
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
	case valueFree.MatchString(text):
		out.Reason = valueFree.FindStringSubmatch(text)[1]
	case wrongConstant.MatchString(text):
		out.Reason = "wrong type of argument: " + wrongConstant.FindStringSubmatch(text)[1]
	case strings.Contains(text, "range can't iterate over"):
		out.Reason = "range needs a list, a map or a number"
	default:
		out.Reason = "the expression cannot be evaluated"
	}
	return out
}

// setPosition sets the position from a text/template error and returns the rest of its
// message.
func (e *TemplateError) setPosition(err error) string {
	match := templatePosition.FindStringSubmatch(err.Error())
	if match == nil {
		return err.Error()
	}
	// Both are digits or empty; a number out of range leaves the position unset.
	e.Line, _ = strconv.Atoi(match[1])
	e.Column, _ = strconv.Atoi(match[2])
	e.Reason = match[3]
	return match[3]
}
