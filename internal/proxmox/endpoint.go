// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"strings"
)

// endpoint is an API path and the template it was built from.
type endpoint struct {
	template string
	path     string
	query    url.Values
	missing  string // a parameter without a value
}

var pathParameter = regexp.MustCompile(`\{[a-z]+\}`)

// at returns the endpoint of a path template with its parameters replaced by values.
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
			// A volume ID keeps its slash: local:iso/a.iso
			return (&url.URL{Path: text}).EscapedPath()
		}
		return url.PathEscape(text)
	})
	return e
}

// with adds a query parameter, also for DELETE: Proxmox answers 501 to a DELETE with
// a body.
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

// labelNotation turns a template into a label value. The metrics parser of Karpenter's test
// suites panics on braces in a label value.
var labelNotation = strings.NewReplacer("{", ":", "}", "")

// label returns the endpoint's label in metrics, "/nodes/:node/qemu". With raw paths each VM
// would be a series.
func (e endpoint) label() string { return labelNotation.Replace(e.template) }

// about returns the subject of the call, which "does not exist" refers to.
func (e endpoint) about() subject {
	switch {
	case strings.Contains(e.template, "/qemu/{vmid}"):
		return aboutGuest
	case strings.Contains(e.template, "/storage/{storage}"):
		return aboutStorage
	case e.template == "/pools":
		return aboutPool
	case strings.HasPrefix(e.template, "/cluster/ha/r"):
		return aboutHA
	}
	return aboutOther
}
