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

// CheckSkipLock refuses skiplock to everybody but root's own login.
func CheckSkipLock(r *Request) error {
	if r.On("skiplock") && !r.Who.IsRoot() {
		return BadParam("skiplock", "Only root may use this option.")
	}
	return nil
}

// Request is one API call after authentication.
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

// Response is what a method returns.
type Response struct {
	Data  any
	Total *int // some lists carry their full length
}

// Handler serves one method.
type Handler func(ctx context.Context, r *Request) (Response, error)

// MergePath adds the path's values to the parameters; a parameter given in both places must agree.
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

func (r *Request) Fill(template string) string {
	return placeholder.ReplaceAllStringFunc(template, func(p string) string {
		return r.Params.Values[strings.Trim(p, "{}")]
	})
}

// Value reads a parameter; ok is false if it was not given.
func (r *Request) Value(name string) (string, bool) {
	v, ok := r.Params.Values[name]
	return v, ok
}

func (r *Request) On(name string) bool { return r.Params.Values[name] == "1" }

func (r *Request) Int(name string, def int) int {
	n, err := strconv.Atoi(r.Params.Values[name])
	if err != nil {
		return def
	}
	return n
}
