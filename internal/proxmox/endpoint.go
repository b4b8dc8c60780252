// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"strings"
)

// endpoint is an API path with its template, which is the label in metrics:
// raw paths would make one series per VM.
type endpoint struct {
	template string
	path     string
	query    url.Values
	missing  string // the parameter that was given no value
}

var pathParameter = regexp.MustCompile(`\{[a-z]+\}`)

// at fills a path template with values, in order.
func at(template string, values ...any) endpoint {
	e := endpoint{template: template}
	e.path = pathParameter.ReplaceAllStringFunc(template, func(parameter string) string {
		if len(values) == 0 {
			e.missing = parameter
			return ""
		}
		text := fmt.Sprint(values[0])
		values = values[1:]
		if text == "" || text == "0" && parameter == "{vmid}" {
			e.missing = parameter
		}
		if parameter == "{volume}" {
			// A volume id keeps its slash: local:iso/a.iso
			return (&url.URL{Path: text}).EscapedPath()
		}
		return url.PathEscape(text)
	})
	return e
}

// with adds a query parameter. Parameters of DELETE go there as well: Proxmox
// answers 501 to a DELETE with a body.
func (e endpoint) with(key, value string) endpoint {
	query := url.Values{}
	maps.Copy(query, e.query)
	query.Set(key, value)
	e.query = query
	return e
}

func (e endpoint) String() string {
	if len(e.query) == 0 {
		return e.path
	}
	return e.path + "?" + e.query.Encode()
}

// about is what "does not exist" would be about.
func (e endpoint) about() subject {
	switch {
	case strings.Contains(e.template, "/qemu/{vmid}"):
		return aboutGuest
	case strings.Contains(e.template, "/storage/{storage}"):
		return aboutStorage
	case e.template == "/pools":
		return aboutPool
	}
	return aboutOther
}

type endpointKey struct{}

// withEndpoint tells the transport below which endpoint a request is for.
func withEndpoint(ctx context.Context, e endpoint) context.Context {
	return context.WithValue(ctx, endpointKey{}, e)
}

func endpointOf(ctx context.Context) endpoint {
	if e, ok := ctx.Value(endpointKey{}).(endpoint); ok {
		return e
	}
	return endpoint{template: "other"}
}
