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

// Params are the parameters of a request, as text. A parameter that was given several times, or as a JSON array, is in
// Lists.
type Params struct {
	Values map[string]string
	Lists  map[string][]string
}

// Errors maps parameters to what is wrong with them, in Proxmox's words.
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

// checker carries what the checks of one request need.
type checker struct {
	catalogue *Catalogue
	errors    Errors
}

// Validate checks a request's parameters, and turns lists into the text form that the parameter wants.
func (c *Catalogue) Validate(m *Method, p *Params) Errors {
	k := &checker{catalogue: c, errors: Errors{}}
	for _, name := range slices.Sorted(maps.Keys(p.Lists)) {
		k.list(m, name, p)
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
		k.value(name, prop, p.Values[name])
	}
	return k.errors
}

// list handles a repeated parameter: list formats take it joined, arrays one by one, everything else refuses it.
func (k *checker) list(m *Method, name string, p *Params) {
	prop := m.Lookup(name)
	switch {
	case prop == nil:
		k.errors.add(name, "property is not defined in schema and the schema does not allow additional properties")
	case prop.Type == "array":
		if prop.Items == nil {
			return
		}
		for i, v := range p.Lists[name] {
			k.value(fmt.Sprintf("%s[%d]", name, i), prop.Items, v)
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

// value checks one parameter in Proxmox's order and stops at its first fault.
func (k *checker) value(path string, p *Property, v string) {
	if p.Type == "array" {
		if p.Items != nil {
			k.value(path, p.Items, v)
		}
		return
	}
	if !typeMatches(p.Type, v) {
		k.errors.add(path, fmt.Sprintf("type check ('%s') failed - got '%s'", p.Type, v))
		return
	}
	if text := k.format(path, p, v); text != "" {
		k.errors.add(path, "invalid format - "+text)
		return
	}
	if text := p.limits(v); text != "" {
		k.errors.add(path, text)
	}
}

func (k *checker) format(path string, p *Property, v string) string {
	if p.Fields != nil {
		_, text := k.parse(path, p.Fields, v)
		return text
	}
	if p.Format == "" {
		return ""
	}
	return k.named(path, p.Format, v)
}

func (p *Property) limits(v string) string {
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
			return "value must have a maximum value of " + plain(*p.Maximum)
		}
		if p.Minimum != nil && n < *p.Minimum {
			return "value must have a minimum value of " + plain(*p.Minimum)
		}
	}
	if p.Enum != nil && !slices.Contains(p.Enum, v) {
		return fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", v, strings.Join(p.Enum, ", "))
	}
	return ""
}

func plain(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// parse reads a property string ("virtio,bridge=vmbr0") and reports the first structural fault, or all faults of its
// values, as the text that follows "invalid format - ".
func (k *checker) parse(path string, fields map[string]*Property, v string) (map[string]string, string) {
	values, text := parsePropertyString(fields, v)
	if text != "" {
		return nil, text
	}
	sub := &checker{catalogue: k.catalogue, errors: Errors{}}
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
				sub.errors.add(path+"."+f.Requires, fmt.Sprintf(k.catalogue.RequiresText, path+"."+name))
			}
		}
		sub.value(path+"."+name, f, val)
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

// readPart reads one "key=value" of a property string, or the value of its default key.
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
	if f == nil {
		return "", "", fmt.Sprintf("invalid key in comma-separated list property: %s\n", key)
	}
	if f.Type == "boolean" {
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

// parseBoolean accepts more spellings inside property strings than Proxmox does for plain parameters.
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

// ParseProperty reads a property string that has been validated before; ok is false if it cannot be read.
func (p *Property) ParseProperty(v string) (values map[string]string, ok bool) {
	fields := p.Fields
	if fields == nil {
		fields = objectFormats[p.Format]
	}
	if fields == nil {
		return nil, false
	}
	values, text := parsePropertyString(fields, v)
	return values, text == ""
}
