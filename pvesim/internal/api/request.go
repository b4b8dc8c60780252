// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"regexp"
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

	Method *schema.Method
	Host   string // the host named in the path
	VMID   int
}

// Upload is the file part of a multipart request.
type Upload struct {
	Name string
	Data []byte
	Temp string
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

// CheckSkipLock returns an error if the request sets skiplock and the caller is not root@pam itself.
func CheckSkipLock(r *Request) error {
	if r.Bool("skiplock") && !r.Who.IsRoot() {
		return BadParam("skiplock", "Only root may use this option.")
	}
	return nil
}

// Response is the result of a handler.
type Response struct {
	Data  any
	Total *int // length of the whole list, where Proxmox reports it
}

// Handler serves one API method.
type Handler func(ctx context.Context, r *Request) (Response, error)
