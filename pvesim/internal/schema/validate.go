// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Params are the parameters of a request as text. Lists contains parameters that were given several times or as a JSON
// array.
type Params struct {
	Values map[string]string
	Lists  map[string][]string
}

// Errors are the error texts of Proxmox by parameter.
type Errors map[string]string

func (e Errors) add(path, text string) {
	if path == "" {
		path = "_root"
	}
	if old, ok := e[path]; ok {
		text = old + `\n` + text
	}
	e[path] = text
}

// checker is the state of one validation.
type checker struct {
	catalog *Catalog
	errors  Errors
}

// Validate returns what is wrong with the parameters of a request. It converts lists to text where the parameter needs
// it.
func (c *Catalog) Validate(m *Method, p *Params) Errors {
	k := &checker{catalog: c, errors: Errors{}}
	for _, name := range slices.Sorted(maps.Keys(p.Lists)) {
		k.checkList(m, name, p)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Params)) {
		if _, given := p.Values[name]; given || m.Params[name].Optional || strings.HasSuffix(name, "[n]") {
			continue
		}
		if _, given := p.Lists[name]; !given {
			k.errors.add(name, "property is missing and it is not optional")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Values)) {
		prop := m.Lookup(name)
		if prop == nil {
			k.errors.add(name, "property is not defined in schema and the schema does not allow additional properties")
			continue
		}
		if prop.Requires != "" {
			if _, ok := p.Values[prop.Requires]; !ok {
				k.errors.add(prop.Requires, fmt.Sprintf(c.RequiresText, name))
			}
		}
		k.checkValue(name, prop, p.Values[name])
	}
	return k.errors
}

// checkList checks a repeated parameter. List formats are joined, arrays are checked one by one, all others fail.
func (k *checker) checkList(m *Method, name string, p *Params) {
	prop := m.Lookup(name)
	switch {
	case prop == nil:
		k.errors.add(name, "property is not defined in schema and the schema does not allow additional properties")
	case prop.Type == "array":
		if prop.Items == nil {
			return
		}
		for i, v := range p.Lists[name] {
			k.checkValue(fmt.Sprintf("%s[%d]", name, i), prop.Items, v)
		}
	case strings.HasSuffix(prop.Format, "-list"):
		p.Values[name] = strings.Join(p.Lists[name], ",")
		delete(p.Lists, name)
	default:
		k.errors.add(name, fmt.Sprintf("type check ('%s') failed - got ARRAY", prop.Type))
	}
}

var (
	integerText = regexp.MustCompile(`^[+-]?\d+$`)
	numberText  = regexp.MustCompile(`^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$`)
)

func typeMatches(typ, v string) bool {
	switch typ {
	case "integer":
		return integerText.MatchString(v)
	case "number":
		return numberText.MatchString(v)
	case "boolean":
		return v == "0" || v == "1"
	default:
		return true
	}
}

// checkValue checks a parameter in the order of Proxmox and stops at the first error.
func (k *checker) checkValue(path string, p *Property, v string) {
	if p.Type == "array" {
		if p.Items != nil {
			k.checkValue(path, p.Items, v)
		}
		return
	}
	if !typeMatches(p.Type, v) {
		k.errors.add(path, fmt.Sprintf("type check ('%s') failed - got '%s'", p.Type, v))
		return
	}
	if text := k.checkFormat(path, p, v); text != "" {
		k.errors.add(path, "invalid format - "+text)
		return
	}
	if text := p.checkLimits(v); text != "" {
		k.errors.add(path, text)
	}
}

func (k *checker) checkFormat(path string, p *Property, v string) string {
	if p.Fields != nil {
		_, text := k.parse(path, p.Fields, v)
		return text
	}
	if p.Format == "" {
		return ""
	}
	return k.checkNamed(path, p.Format, v)
}

func (p *Property) checkLimits(v string) string {
	if p.pattern != nil && !p.pattern.MatchString(v) {
		return "value does not match the regex pattern"
	}
	length := utf8.RuneCountInString(v)
	if p.MaxLength != nil && length > *p.MaxLength {
		return fmt.Sprintf("value may only be %d characters long", *p.MaxLength)
	}
	if p.MinLength != nil && length < *p.MinLength {
		return fmt.Sprintf("value must be at least %d characters long", *p.MinLength)
	}
	if n, err := strconv.ParseFloat(v, 64); err == nil {
		if p.Maximum != nil && n > *p.Maximum {
			return "value must have a maximum value of " + formatNumber(*p.Maximum)
		}
		if p.Minimum != nil && n < *p.Minimum {
			return "value must have a minimum value of " + formatNumber(*p.Minimum)
		}
	}
	if p.Enum != nil && !slices.Contains(p.Enum, v) {
		return fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", v, strings.Join(p.Enum, ", "))
	}
	return ""
}

func formatNumber(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// parse parses a property string, "virtio,bridge=vmbr0". It returns the first structural error, or all errors of its
// values, as the text that follows "invalid format - ".
func (k *checker) parse(path string, fields map[string]*Property, v string) (map[string]string, string) {
	values, text := parsePropertyString(fields, v)
	if text != "" {
		return nil, text
	}
	sub := &checker{catalog: k.catalog, errors: Errors{}}
	for name := range values {
		if fields[name] == nil {
			sub.errors.add(path+"."+name, "property is not defined in schema and the schema does not allow additional properties")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		f := fields[name]
		val, given := values[name]
		if f.Alias != "" {
			continue
		}
		if !given {
			if !f.Optional {
				sub.errors.add(path+"."+name, "property is missing and it is not optional")
			}
			continue
		}
		if f.Requires != "" {
			if _, ok := values[f.Requires]; !ok {
				sub.errors.add(path+"."+f.Requires, fmt.Sprintf(k.catalog.RequiresText, path+"."+name))
			}
		}
		sub.checkValue(path+"."+name, f, val)
	}
	if len(sub.errors) == 0 {
		return values, ""
	}
	var b strings.Builder
	b.WriteString("format error\n")
	for _, key := range slices.Sorted(maps.Keys(sub.errors)) {
		fmt.Fprintf(&b, "%s: %s\n", key, sub.errors[key])
	}
	return nil, b.String()
}

func parsePropertyString(fields map[string]*Property, v string) (map[string]string, string) {
	values := map[string]string{}
	for _, part := range strings.Split(v, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		key, val, text := readPart(fields, values, part)
		if text != "" {
			return nil, text
		}
		values[key] = val
	}
	return values, ""
}

// readPart parses a "key=value" of a property string, or the value of its default key.
func readPart(fields map[string]*Property, values map[string]string, part string) (key, val, text string) {
	key, val, hasKey := strings.Cut(part, "=")
	if !hasKey {
		key, val = defaultKey(fields), part
		if key == "" {
			return "", "", "value without key, but schema does not define a default key\n"
		}
	}
	if key == "" || val == "" {
		return "", "", "missing key in comma-separated list property\n"
	}
	if _, dup := values[key]; dup {
		return "", "", fmt.Sprintf("duplicate key in comma-separated list property: %s\n", key)
	}
	f := fields[key]
	if f != nil && f.Alias != "" {
		if f.KeyAlias != "" {
			if _, dup := values[f.KeyAlias]; dup {
				return "", "", fmt.Sprintf("key alias '%s' is already defined\n", f.KeyAlias)
			}
			values[f.KeyAlias] = key
		}
		key = f.Alias
		f = fields[key]
	}
	if f != nil && f.Type == "boolean" {
		val = parseBoolean(val)
	}
	return key, val, ""
}

func defaultKey(fields map[string]*Property) string {
	for name, f := range fields {
		if f.DefaultKey {
			return name
		}
	}
	return ""
}

// parseBoolean parses a boolean in a property string, which has more spellings than in a parameter.
func parseBoolean(v string) string {
	switch strings.ToLower(v) {
	case "1", "on", "yes", "true":
		return "1"
	case "0", "off", "no", "false":
		return "0"
	default:
		return v
	}
}
